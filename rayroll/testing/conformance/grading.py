"""Grading on this level: what enters after ``kill_all`` is untouched by what the agent left behind.

The session adds its own checks here, about whole grades: a check that takes ``lab.substrate`` into a session, forges
``/logs/verifier/reward.txt`` in every way it can think of, and expects the verdict of the tests.
"""

from __future__ import annotations

from rayroll.testing.conformance._lab import Lab
from rayroll.testing.conformance._registry import check, expect, same
from rayroll.testing.conformance.kill import new_mark
from rayroll.types import FileTree

TEST = """\
cat answer > verdict/seen
if [ "$(cat answer)" = 42 ]; then echo 1; else echo 0; fi > verdict/reward
"""
TESTS = FileTree.from_files({"test.sh": TEST}, executable=frozenset({"test.sh"}))


@check()
async def what_the_agent_left_running_does_not_see_the_tests(lab: Lab) -> None:
    """Forgers started before grading are gone when the tests come: nothing is copied or overwritten."""
    box, mark = lab.box, new_mark()
    await box.client.write_file(box.path("answer"), b"41\n")
    forger = "while :; do cp -r tests copied 2>/dev/null; mkdir -p verdict; echo 1 > verdict/reward; done"
    await box.client.write_file(box.path("forger.sh"), forger.encode())
    start = f"(setsid sh forger.sh {mark} >/dev/null 2>&1 &); (sh forger.sh {mark} >/dev/null 2>&1 &)"
    await box.sh(start, cwd=box.folder)
    while await box.running(mark) < 2:
        pass
    await box.client.kill_all()
    same(await box.running(mark), 0, "the number of forgers")
    for left in ("verdict", "copied", "tests"):
        await box.client.remove(box.path(left))
    r = await _grade(lab)
    same(
        (r, [e.path for e in await box.client.list_tree(box.folder) if e.path.startswith(b"copied")]),
        ("0\n", []),
        "the reward",
    )


@check()
async def links_in_the_graders_way_lead_nowhere(lab: Lab) -> None:
    """The agent made links of the names that grading will use: removed first, nothing follows them."""
    box = lab.box
    await box.client.write_file(box.path("answer"), b"41\n")
    await box.sh(
        "mkdir -p trap; echo keep > trap/kept; ln -s trap tests; ln -s trap verdict; ln -s /nowhere answer2",
        cwd=box.folder,
    )
    for name in ("tests", "verdict"):
        await box.client.remove(box.path(name))
    same(await _grade(lab), "0\n", "the reward")
    names = {e.path for e in await box.client.list_tree(box.path("trap"))} - {b""}
    same(names, {b"kept"}, "what lies in the trap")


async def _grade(lab: Lab) -> str:
    box = lab.box
    await box.client.upload_tree(box.path("tests"), TESTS.tar)
    await box.client.write_file(box.path("verdict/.here"), b"")
    r = await box.sh(
        "sh tests/test.sh", cwd=box.folder, clean_env=True, carry=False, env={"PATH": "/usr/local/bin:/usr/bin:/bin"}
    )
    expect(not r.timed_out, "the tests end", result=r)
    return (await box.client.read_file(box.path("verdict/reward"))).decode()
