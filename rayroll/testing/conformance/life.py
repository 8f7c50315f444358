"""From create to destroy: what is asked for, labelled, freed when it fails, and apart from its neighbours."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from rayroll.errors import (
    ConfigError,
    EngineDownError,
    InfraFailure,
    RayrollError,
    SandboxLostError,
    SubstrateError,
    TaskError,
)
from rayroll.substrates import Lease, SandboxRef
from rayroll.testing.conformance._lab import Lab
from rayroll.testing.conformance._registry import Capability, NotApplicable, check, expect, same
from rayroll.types import FileTree

RUNGS = {"cold", "cached", "snapshot", "warm", "recycled"}


@check()
async def probe_answers_without_being_opened(lab: Lab) -> None:
    """A second instance, not open, says that this node can run it, and with what."""
    probe = await type(lab.substrate)(lab.substrate.config).probe()
    expect(probe.ok, "the node that runs it can run it", probe=probe)
    expect(probe.facts, "it records versions or capabilities", probe=probe)


@check()
async def closing_is_idempotent(lab: Lab) -> None:
    """Opened, closed twice, and never opened but closed: no error."""
    other = type(lab.substrate)(lab.substrate.config)
    await other.open()
    await other.close()
    await other.close()
    await type(lab.substrate)(lab.substrate.config).close()


@check()
async def a_sandbox_says_how_it_was_started(lab: Lab) -> None:
    """Its reference carries run, owner and lease; its rung is a known word; its phases fit into the call to create."""
    start_s = time.monotonic()
    sandbox = await lab.substrate.create(lab.spec, Lease(lab.run_id, "says", 25))
    took_s = time.monotonic() - start_s
    try:
        ref = sandbox.ref
        same((ref.kind, ref.run_id, ref.owner), (lab.substrate.kind, lab.run_id, "says"), "kind, run and owner")
        expect(sandbox.rung in RUNGS, "the rung is a known word", rung=sandbox.rung)
        expect(
            set(sandbox.phases_s) <= {"pull", "build", "create", "boot"}, "only known phases", phases=sandbox.phases_s
        )
        expect(all(s >= 0 for s in sandbox.phases_s.values()), "no phase is negative", phases=sandbox.phases_s)
        total_s = sum(sandbox.phases_s.values())
        expect(0 < total_s <= took_s, "they fit into the call", total_s=total_s, took_s=took_s)
        (listed,) = [r for r in await lab.substrate.list({"run": lab.run_id}) if r.id == ref.id]
        same(listed.state, "running", "the state listed")
        same(listed.lease_s, 25, "the lease listed")
        expect(-1 <= listed.age_s <= took_s + 10, "its age is how long it exists", age_s=listed.age_s)
    finally:
        await lab.substrate.destroy(sandbox.ref)


@check()
async def environment_and_directory_are_those_asked_for(lab: Lab) -> None:
    """``env`` and ``workdir`` of the spec are what commands see, with any value; a missing directory is made."""
    env = {"PLAIN": "1", "ODD": "a b'c\"d $HOME `x`\ny", "EMPTY": "", "UNICODE": "ü🙂"}
    async with lab.fresh(env=env, workdir="/made/for this") as live:
        r = await live.sh('pwd; printf "%s|" "$PLAIN" "$ODD" "$EMPTY" "$UNICODE"; touch here && rm here')
        same(r.output, "/made/for this\n" + "".join(f"{v}|" for v in env.values()), "what a command sees")


@check()
async def list_shows_exactly_the_sandboxes_of_its_labels(lab: Lab) -> None:
    """By run, by owner, by both; nothing of another run or owner is among them; an unknown label matches none."""
    run = f"{lab.run_id}-list"
    async with AsyncExitStack() as stack:
        a, b, c = [
            (await stack.enter_async_context(lab.fresh(run_id=r, owner=o))).ref.id
            for r, o in ((run, "one"), (run, "two"), (f"{run}-other", "one"))
        ]

        async def ids(**labels: str) -> set[str]:
            return {ref.id for ref in await lab.substrate.list(labels)}

        same(await ids(run=run), {a, b}, "the sandboxes of the run")
        same(await ids(run=run, owner="one"), {a}, "those of one owner")
        same(await ids(run=f"{run}-other"), {c}, "those of the other run")
        same(await ids(run=run, owner="nobody"), set(), "those of nobody")
        same(await ids(run=f"{run}-othe"), set(), "those of the beginning of a run's name")
        expect({a, b, c} <= await ids(), "without labels all are listed")
    same(await ids(run=run) | await ids(run=f"{run}-other"), set(), "the sandboxes afterwards")


@check()
async def sweeping_one_run_leaves_the_other(lab: Lab) -> None:
    """What is swept is returned and gone; what belongs to another run answers as before."""
    doomed, spared = f"{lab.run_id}-doomed", f"{lab.run_id}-spared"
    async with lab.fresh(run_id=doomed) as gone, lab.fresh(run_id=spared) as kept:
        same(await lab.substrate.sweep({"run": doomed}), (), "what a sweep takes that spares the living")
        swept = await lab.substrate.sweep({"run": doomed}, older_than_s=0)
        same([r.id for r in swept], [gone.ref.id], "what was swept")
        same(await lab.substrate.list({"run": doomed}), [], "what is listed of the swept run")
        same((await kept.sh("echo alive")).output, "alive\n", "what the other run's sandbox prints")


@check()
async def destroying_twice_is_no_error(lab: Lab) -> None:
    """Destroyed again, twice at once, or never there: nothing is raised, and nothing else is hurt."""
    async with lab.fresh() as live:
        await asyncio.gather(*(lab.substrate.destroy(live.ref) for _ in range(3)))
        await lab.substrate.destroy(live.ref)
        same([r for r in await lab.substrate.list({"run": lab.run_id}) if r.id == live.ref.id], [], "what is listed")
    await lab.substrate.destroy(SandboxRef(lab.substrate.kind, "0123456789abcdef", lab.run_id, "nobody"))
    same((await lab.box.sh("echo alive")).output, "alive\n", "what another sandbox prints")


@check()
async def another_instance_can_list_and_destroy(lab: Lab) -> None:
    """A reference is enough: a second instance, as in another process, finds the sandbox and removes it."""
    async with lab.fresh() as live, type(lab.substrate)(lab.substrate.config) as other:
        found = [r for r in await other.list({"run": lab.run_id}) if r.id == live.ref.id]
        same([r.state for r in found], ["running"], "what the other instance lists")
        await other.destroy(found[0])
        same([r for r in await other.list({"run": lab.run_id}) if r.id == live.ref.id], [], "what is left")
        try:
            r = await live.sh("echo still here")
        except SandboxLostError:
            return
    expect(False, "its own client learns that it is gone", result=r)


@check()
async def a_sandbox_under_load_can_be_destroyed(lab: Lab) -> None:
    """During endless output, a busy loop and a large upload: it ends, and every call raises SandboxLostError."""
    async with lab.fresh() as live:
        calls = [
            asyncio.create_task(live.sh("yes", timeout_s=None)),
            asyncio.create_task(live.sh("while :; do :; done", timeout_s=None)),
            asyncio.create_task(live.client.write_file(live.path("big"), bytes(64 << 20))),
        ]
        await live.sh("true")
        await lab.substrate.destroy(live.ref)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if outcome is not None:  # the upload may have been quicker
                expect(
                    isinstance(outcome, SandboxLostError), "a call under way raises SandboxLostError", outcome=outcome
                )


@check(source="B16")
async def a_cancelled_create_leaves_nothing(lab: Lab) -> None:
    """Cancelled at ten moments from the first step to just before the end, and again during the cleaning up."""
    start_s = time.monotonic()
    async with lab.fresh():
        usual_s = time.monotonic() - start_s
    run = f"{lab.run_id}-cancelled"

    async def one(delay_s: float, twice: bool) -> None:
        create = asyncio.create_task(lab.substrate.create(lab.spec, Lease(run, "cancelled", 30)))
        await asyncio.wait({create}, timeout=delay_s)
        create.cancel()
        if twice:
            await asyncio.sleep(0)
            create.cancel()
        try:
            sandbox = await create
        except (asyncio.CancelledError, InfraFailure):
            return
        await lab.substrate.destroy(sandbox.ref)

    for share in (0, 0.02, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0):
        await one(share * usual_s, twice=share in (0.2, 0.65))
    await asyncio.gather(*(one(share * usual_s, twice=False) for share in (0.1, 0.4, 0.8, 1.2)))
    deadline_s = time.monotonic() + 10
    while left := await lab.substrate.list({"run": run}):
        expect(time.monotonic() < deadline_s, "nothing is left of cancelled creates", left=left)
        await asyncio.sleep(0.05)


@check(source="B17")
async def an_unknown_image_is_refused_with_its_name(lab: Lab) -> None:
    """A typed error that says which image, not a machine's failure to be retried for ever, and nothing is left."""
    name = "127.0.0.1:1/rayroll-no-such-image:0"  # nothing listens there, and nobody else is asked
    try:
        async with asyncio.timeout(30):
            sandbox = await lab.substrate.create(
                type(lab.spec)(image=name), Lease(f"{lab.run_id}-image", "unknown", 30)
            )
    except EngineDownError as error:
        raise NotApplicable(f"no image of any name can be had: {error}") from error
    except (SubstrateError, ConfigError, TaskError) as error:
        expect(name in str(error), "the error names the image", error=error)
    else:
        await lab.substrate.destroy(sandbox.ref)
        expect(False, "it is refused")
    same(await lab.substrate.list({"run": f"{lab.run_id}-image"}), [], "what is left")


@check(source="B17")
async def a_dockerfile_that_does_not_build_is_the_tasks_fault(lab: Lab) -> None:
    """TaskError with what the build printed; nothing is left."""
    if lab.box.sandbox.system != "image":
        raise NotApplicable("it stands on the node's own system, where nothing is built")
    run = f"{lab.run_id}-broken"
    base = lab.spec.image or "debian:bookworm-slim"
    tree = FileTree.from_files({"Dockerfile": f"FROM {base}\nRUN echo the-reason && exit 9\n"})
    try:
        sandbox = await lab.substrate.create(type(lab.spec)(environment=tree), Lease(run, "broken", 30))
    except ConfigError as error:
        raise NotApplicable(f"it does not build: {error}") from error
    except TaskError as error:
        expect("the-reason" in str(error) or "9" in str(error), "the error says why", error=error)
    else:
        await lab.substrate.destroy(sandbox.ref)
        expect(False, "it is refused")
    same(await lab.substrate.list({"run": run}), [], "what is left")


@check()
async def neighbours_share_neither_files_nor_processes(lab: Lab) -> None:
    """Two sandboxes of one spec: what one writes, starts and exports is not in the other."""
    async with lab.fresh() as a, lab.fresh() as b:
        await a.sh("echo mine > /tmp/mine 2>/dev/null; export MINE=1; sleep 9172634 >/dev/null 2>&1 &")
        r = await b.sh('cat /tmp/mine 2>/dev/null; echo "${MINE-none}"')
        if await lab.lacks(Capability.OWN_PIDS):
            raise NotApplicable("without namespaces they do share them")
        same(r.output, "none\n", "what the other one sees")
        same(await b.running("9172634"), 0, "the number of the first one's processes in the other")
        same(await a.running("9172634"), 1, "the number of them in the first")


@check()
async def eight_creates_at_once_all_succeed(lab: Lab) -> None:
    """Each is another sandbox with a runner of its own."""
    n = min(8, lab.many)
    async with AsyncExitStack() as stack:
        boxes = await asyncio.gather(*(stack.enter_async_context(lab.fresh()) for _ in range(n)))
        same(len({b.ref.id for b in boxes}), n, "the number of different ids")
        results = await asyncio.gather(
            *(b.sh(f"echo {i} > {b.path('i')}; cat {b.path('i')}") for i, b in enumerate(boxes))
        )
        same([r.output for r in results], [f"{i}\n" for i in range(n)], "what each prints")


@check(source="B19", is_slow=True, limit_s=180)
async def forty_sandboxes_run_at_once(lab: Lab) -> None:
    """``sleep 2`` in every one of many at the same time takes about as long as in one, not four times as long.

    Four times is what a client library's pool of ten connections makes of forty.
    """
    async with AsyncExitStack() as stack:
        boxes = await asyncio.gather(*(stack.enter_async_context(lab.fresh()) for _ in range(lab.many)))
        start_s = time.monotonic()
        results = await asyncio.gather(*(b.sh("sleep 2; echo woke") for b in boxes))
        took_s = time.monotonic() - start_s
    same({r.output for r in results}, {"woke\n"}, "what they print")
    expect(took_s < 3 * 2, "they do not wait for each other", took_s=took_s, sandboxes=lab.many)


@check(needs=(Capability.MEMORY_LIMIT,))
async def running_out_of_memory_costs_the_command_not_the_runner(lab: Lab) -> None:
    """The process that eats it is killed, code 137; should the sandbox go with it, its cause of death says memory."""
    async with lab.fresh(memory_mib=96) as live:
        intruder = await lab.intruder(live)
        for _ in range(3):
            try:
                r = await live.sh(f"{intruder} eat 400")
                expect(r.exit_code in (137, 1) and "ate" not in r.output, "what eats it is stopped", result=r)
                same((await live.sh("echo alive")).output, "alive\n", "what the next command prints")
            except RayrollError as error:
                expect(live.client.is_lost, "it is lost", error=error)
                cause = await lab.substrate.cause_of_death(live.ref)
                expect("oom" in cause.lower() or cause == "", "the cause says that it was memory", cause=cause)
                return


@check(needs=(Capability.OWN_PIDS,))
async def a_cause_of_death_can_be_asked_for(lab: Lab) -> None:
    """Of the living, of the destroyed, of those nobody ever knew: a sentence or nothing, never an error."""
    async with lab.fresh() as live:
        expect(isinstance(await lab.substrate.cause_of_death(live.ref), str), "the living have a text")
        await lab.substrate.destroy(live.ref)
        expect(isinstance(await lab.substrate.cause_of_death(live.ref), str), "the dead have a text")
    stranger = SandboxRef(lab.substrate.kind, "0123456789abcdef", lab.run_id, "nobody")
    same(await lab.substrate.cause_of_death(stranger), "", "the cause of what never was")
