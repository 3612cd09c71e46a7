# SPDX-License-Identifier: Apache-2.0
"""Changes to a tenant of this node through the daemon's socket, after a confirmation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from textual import work

from hypervisor.top.model import NodeView
from hypervisor.top.row import Row
from hypervisor.top.screen.dialogs import Confirm, QuotaForm
from hypervisor.top.screen.widgets import Rows
from limiter import daemon_client, quota, segment
from limiter.errors import GpulimitError

if TYPE_CHECKING:
    from textual.app import App

    Base = App[None]
else:
    Base = object


class Changes(Base):
    """Actions of the screen that change a tenant."""

    has_many: bool

    @property
    def shown(self) -> NodeView | None:
        raise NotImplementedError

    def look_now(self) -> None:
        raise NotImplementedError

    def complain(self, text: str) -> None:
        self.notify(text, severity="error", timeout=8, markup=False)

    def tenant_chosen(self) -> str | None:
        """Return the tenant under the cursor. If it cannot be changed, show the reason and return None."""
        row, node = self.query_one("#main", Rows).chosen, self.shown
        why = why_not(row, node, has_many=self.has_many)
        if why:
            self.complain(why)
            return None
        assert row is not None
        return row.name

    @work
    async def action_suspend(self) -> None:
        tenant = self.tenant_chosen()
        if tenant is not None and await self.push_screen_wait(
            Confirm(
                f"Suspend {tenant}?",
                "Its launches wait until it is resumed. Work on the GPU runs to its end, and memory stays.",
                "suspend it",
            )
        ):
            await self.tell("POST", f"/v1/tenants/{tenant}/suspend", None, f"{tenant} is suspended")

    @work
    async def action_resume(self) -> None:
        tenant = self.tenant_chosen()
        if tenant is not None and await self.push_screen_wait(
            Confirm(f"Resume {tenant}?", "Its launches continue.", "resume it")
        ):
            await self.tell("POST", f"/v1/tenants/{tenant}/resume", None, f"{tenant} goes on")

    @work
    async def action_quota(self) -> None:
        tenant = self.tenant_chosen()
        if tenant is None:
            return
        target = f"/v1/tenants/{tenant}/quota"
        try:
            now = await asyncio.to_thread(daemon_client.ask, "GET", target)
        except GpulimitError as error:
            self.complain(str(error))
            return
        said = said_in(now)
        wanted = await self.push_screen_wait(QuotaForm(tenant, said, str(now.get("source") or "")))
        if wanted is None or wanted == said:
            return
        try:
            quota.read(
                {f"GPULIMIT_{n.upper()}": v for n, v in wanted.items()},
                flags={f"GPULIMIT_{n.upper()}": n for n in wanted},
            )
        except GpulimitError as error:
            self.complain(str(error))
            return
        if await self.push_screen_wait(
            Confirm(f"Set the quota of {tenant}?", difference(said, wanted), "set it")
        ):
            await self.tell("PUT", target, wanted, f"the quota of {tenant} is set")

    async def tell(self, method: str, target: str, body: object, done: str) -> None:
        """Send a request to the daemon and show the result."""
        try:
            await asyncio.to_thread(daemon_client.ask, method, target, body)
        except GpulimitError as error:
            self.complain(str(error))
        else:
            self.notify(done, markup=False)
        self.look_now()


def why_not(row: Row | None, node: NodeView | None, *, has_many: bool) -> str:
    """Return the reason that the row's tenant cannot be changed. Empty if it can."""
    if has_many:
        return "a node's tenants are changed on the node itself: run `gpulimit top` there"
    if row is None or row.kind != "tenant":
        return "put the cursor on a tenant first"
    if node is None or not node.has_daemon:
        return "this needs the daemon, and there is none; `gpulimit tenant` and `quota` can do some of it"
    if not node.may_change:
        return "only root and the daemon's group may change tenants"
    if not segment.TENANT.fullmatch(row.name):
        return f"{row.name!r} is not a name that the daemon knows"
    return ""


def said_in(answer: Any) -> dict[str, str]:
    """Return the quota of an answer in the form that a user types."""
    said = answer.get("quota") if isinstance(answer, Mapping) else None
    parts = said if isinstance(said, Mapping) else {}
    return {str(k): typed(str(v).removeprefix("*=")) for k, v in parts.items() if k != "tenant"}


def typed(text: str) -> str:
    """Return a number of bytes in the largest unit that is exact. Return other text unchanged."""
    digits = text.removesuffix("B")
    if text == digits or not digits.isdecimal():
        return text
    count = int(digits)
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return text


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the difference between two quotas, one line per changed field."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return "\n".join(f"{name}: {before.get(name, 'none')} → {after.get(name, 'none')}" for name in names)
