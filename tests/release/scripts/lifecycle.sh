# Runs in a minimal Debian: what the package leaves at each step of its life.
files() {
	find / -xdev \( -path /proc -o -path /mnt -o -path /tmp -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache \
		-o -path /var/lib/systemd \) -prune -o ! -type d -print | sort
}
files > /tmp/before
dpkg -i /mnt/gpulimit.deb >/dev/null
echo "== enabled"
test -L /etc/systemd/system/multi-user.target.wants/gpulimit.service && echo enabled
echo "== installed"
files | comm -13 /tmp/before - | grep -v site-packages
test -d /run/gpulimit && test -d /var/lib/gpulimit
files > /tmp/installed
gpulimit version --verbose >/dev/null
gpulimit run --sim --memory 1GiB -- gpulimit load --seconds 0.2 >/dev/null
gpulimit daemon --sim --metrics-addr '' >/dev/null 2>&1 &
while ! gpulimit status --json --over 0 | grep -q '"daemon": true'; do sleep 0.1; done
kill -TERM $!
wait $! || true
echo "== changed"
files | comm -3 /tmp/installed - | tr -d '\t' | grep -v '^/run/gpulimit\|^/var/lib/gpulimit' || true
dpkg -r gpulimit >/dev/null
echo "== removed"
files | comm -13 /tmp/before - | grep -v '^/etc/systemd/system/\|^/var/lib/gpulimit\|^/run/gpulimit' || true
dpkg -P gpulimit >/dev/null
echo "== purged"
files | comm -13 /tmp/before - || true
test ! -e /var/lib/gpulimit && test ! -e /usr/lib/gpulimit
