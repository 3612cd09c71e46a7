/* SPDX-License-Identifier: Apache-2.0
 *
 * Records the GPU time that has been counted, so that overlapping work counts once, in whatever order it is looked at.
 * Work may be looked at long after it ran, when later work has been counted already.  So a single time up to which
 * everything is counted is not enough.
 *
 * The clock is divided into parts, and two tables hold the latest ones: a quarter of a second in parts of a
 * millisecond, and four seconds in parts of 17 ms for work that is looked at later or lasts longer.  A part records the
 * two points between which work has been, and how much time of that is counted.  The time outside the points is free,
 * and so is the time inside that is not counted.  The place of work in its interval is not known.  It is put as early
 * as there is room, which leaves the most room for work that ends later.  A part is one word, changed by
 * compare-and-swap: a process may stop or die anywhere.
 */
#include "time/types.h"

enum { PARTS = sizeof((struct gl_cover *)0)->fine / sizeof(uint64_t), FINE = 20, COARSE = 24, UNIT = 12, FIELD = 13, AHEAD = 8 };
#define MASK ((1u << FIELD) - 1)

/* Points in 4096ths of the part. */
struct part {
	uint32_t turn;         /* number of times round the table, of which the low bits are kept */
	uint32_t from, to;     /* work has been in between */
	uint32_t counted;
};

/* Parts of 2^bits ns. */
struct table {
	uint64_t *part;
	uint32_t bits;
};

static struct part part_of(uint64_t word)
{
	return (struct part){(uint32_t)(word >> 3 * FIELD), word >> 2 * FIELD & MASK, word >> FIELD & MASK, word & MASK};
}

static uint64_t word_of(struct part p)
{
	return (uint64_t)p.turn << 3 * FIELD | (uint64_t)p.from << 2 * FIELD | (uint64_t)p.to << FIELD | p.counted;
}

static uint32_t less(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t more(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* The first point that the table still holds; 0: it holds all. */
static uint64_t horizon(struct table t, uint64_t now)
{
	uint64_t parts = (now >> t.bits) + AHEAD;
	return parts > PARTS ? (parts - PARTS) << t.bits : 0;
}

/* Extends the part to cover [from, to), which lies in it; returns how many ns of that may still be counted. */
static uint64_t stretch(struct table t, struct part *p, uint64_t from, uint64_t to)
{
	uint32_t unit = t.bits - UNIT, turn = (uint32_t)((from >> t.bits) / PARTS) & ((1u << (64 - 3 * FIELD)) - 1);
	uint64_t start = from >> t.bits << t.bits;
	uint32_t begin = (uint32_t)((from - start) >> unit), end = (uint32_t)((to - start - 1) >> unit) + 1;
	if (p->turn != turn || p->to <= p->from)
		*p = (struct part){turn, begin, begin, 0};
	uint32_t first = more(begin, p->from), last = less(end, p->to), inside = last > first ? last - first : 0;
	uint32_t room = p->to - p->from > p->counted ? p->to - p->from - p->counted : 0;
	p->from = less(begin, p->from);
	p->to = more(end, p->to);
	return (uint64_t)(less(inside, room) + (end - begin - inside)) << unit;
}

static uint64_t *word_at(struct table t, uint64_t ns)
{
	return &t.part[(ns >> t.bits) % PARTS];
}

static uint64_t end_of(struct table t, uint64_t at, uint64_t to)
{
	uint64_t next = ((at >> t.bits) + 1) << t.bits;
	return next < to ? next : to;
}

static uint64_t take_part(struct table t, uint64_t from, uint64_t to, uint64_t want)
{
	uint64_t *word = word_at(t, from), seen = gl_load_relaxed(word), got;
	struct part p;
	do {
		p = part_of(seen);
		got = stretch(t, &p, from, to);
		if (got > want)
			got = want;
		p.counted = less(p.counted + (uint32_t)((got + (1u << (t.bits - UNIT)) / 2) >> (t.bits - UNIT)), 1u << UNIT);
	} while (!__atomic_compare_exchange_n(word, &seen, word_of(p), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	return got;
}

static uint64_t take(struct table t, uint64_t from, uint64_t to, uint64_t want)
{
	uint64_t got = 0;
	for (uint64_t at = from; at < to && got < want; at = end_of(t, at, to))
		got += take_part(t, at, end_of(t, at, to), want - got);
	return got;
}

/* The free time before what the table holds.  That time is assumed to be as full as the rest of the interval. */
static uint64_t room_before(struct table t, uint64_t from, uint64_t remembered, uint64_t to)
{
	uint64_t room = 0;
	if (to <= remembered)
		return to - from;
	for (uint64_t at = remembered; at < to; at = end_of(t, at, to)) {
		struct part p = part_of(gl_load_relaxed(word_at(t, at)));
		room += stretch(t, &p, at, end_of(t, at, to));
	}
	uint64_t share = room * 1024 / (to - remembered);
	return (remembered - from) / 1024 * (share < 1024 ? share : 1024);
}

/* Takes from the coarse table the time that the fine one no longer holds. */
static uint64_t take_old(struct table t, uint64_t from, uint64_t to, uint64_t want, uint64_t now)
{
	uint64_t remembered = horizon(t, now), got = 0;
	if (from < remembered) {
		uint64_t room = room_before(t, from, remembered, to);
		got = room < want ? room : want;
		from = remembered;
	}
	return got + take(t, from, to, want - got);
}

uint64_t gl_cover_take(struct gl_cover *cover, uint64_t from, uint64_t to, uint64_t want, uint64_t now)
{
	struct table fine = {cover->fine, FINE}, coarse = {cover->coarse, COARSE};
	uint64_t remembered = horizon(fine, now), old = 0;
	if (to >> FINE >= (now >> FINE) + AHEAD || from >= to)
		return want; /* invalid, or the clocks are far apart */
	if (from < remembered) {
		uint64_t until = to < remembered ? to : remembered;
		old = take_old(coarse, from, until, want, now);
		from = until;
	}
	uint64_t got = take(fine, from, to, want - old);
	(void)take(coarse, from, to, got);
	return old + got;
}
