"""The parsers under random bytes: ``RAYROLL_FUZZ_S`` seconds for each of three harnesses."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from requirements import require

HERE = Path(__file__).parent / "fuzz"
SECONDS = os.environ.get("RAYROLL_FUZZ_S", "3")


def why_no_fuzzer(folder: Path) -> str | None:
    """What is missing; None: nothing."""
    if shutil.which("clang") is None:
        return "clang is not installed; apt-get install clang libclang-rt-14-dev"
    (folder / "try.c").write_text("int LLVMFuzzerTestOneInput(const char *p, long n) { return p == 0 && n; }")
    command = ["clang", "-fsanitize=fuzzer,address,undefined", "-o", str(folder / "try"), str(folder / "try.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (
        None
        if done.returncode == 0
        else f"clang has no libFuzzer; apt-get install libclang-rt-14-dev: {done.stderr[-300:]}"
    )


@pytest.mark.usefixtures("namespaces")
def test_no_input_that_is_tried_breaks_a_parser(tmp_path: Path) -> None:
    require("fuzz", why_no_fuzzer(tmp_path))
    done = subprocess.run([str(HERE / "run.sh"), SECONDS, str(tmp_path)], capture_output=True, text=True, check=False)
    found = [path.read_bytes() for path in tmp_path.glob("*-*") if path.is_file()]
    assert done.returncode == 0 and not found, (done.stdout + done.stderr)[-6000:]


def test_the_seeds_are_those_that_the_encoders_make(tmp_path: Path) -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("seeds", HERE / "seeds.py")
    assert spec and spec.loader
    seeds = module_from_spec(spec)
    spec.loader.exec_module(seeds)
    seeds.HERE = tmp_path
    seeds.main()
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path.relative_to(HERE): path.read_bytes() for path in (HERE / "corpus").rglob("*") if path.is_file()}
    assert made == kept
