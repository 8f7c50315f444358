"""The numbers that synthetic sessions follow: TraceLab's published statistics, and what we chose where it has none.

From facts.json (TraceLab, arXiv 2606.30560), whose fields each constant names. Curves are points (share, value) of a
quantile function, log-linear in between; a point without a published counterpart is ours, placed so that means and sums
(hours of a tool, tokens of a provider) come out near the published ones.
"""

from __future__ import annotations

from typing import NamedTuple

Curve = tuple[tuple[float, float], ...]

PROVIDERS = {"claude": 2676, "codex": 1589}
"""scope.sessions."""
CODEX_LENGTH = (216823 / 1589) / (140338 / 2676)
"""scope.steps by scope.sessions: a session of Codex's is 2.6 times as long."""

# counts.per_session and counts.per_request; the share of sessions of one request is that of sessions without a wait
# (timing_seconds.sessions_without_any_positive_human_wait_pct).
SESSION_REQUESTS: Curve = ((0, 1), (0.585, 1), (0.75, 3.7), (0.9, 18), (0.95, 37), (0.99, 137), (1, 420))
SESSION_STEPS: Curve = (
    *((0, 0.6), (0.25, 4), (0.5, 15), (0.75, 41), (0.9, 135), (0.95, 245), (0.99, 1107), (0.9977, 2400), (1, 7400)),
)
SESSION_CALLS: Curve = (
    *((0, 0.6), (0.25, 8), (0.5, 25), (0.75, 60), (0.9, 176), (0.95, 325), (0.99, 1438), (0.9977, 3200), (1, 9500)),
)
REQUEST_STEPS: Curve = ((0, 0.01), (0.38, 0.5), (0.5, 1.3), (0.75, 4.7), (0.9, 20), (0.99, 86), (0.999, 260), (1, 900))
CALLS_OF_A_STEP = (0.785, 0.138, 0.045, 0.023, 0.003, 0.002, 0.0015, 0.001, 0.0005)
"""Shares of 1, 2, ... calls among steps with any: counts.per_step.tool_calls, 1.35 on average (scope)."""

# timing_seconds.per_individual_event, p25_individual; human_wait.
GENERATION_S: Curve = ((0, 0.5), (0.25, 3.5), (0.5, 5.7), (0.9, 22.2), (0.99, 84), (1, 600))
WAIT_S: dict[str, Curve] = {
    "claude": (
        *((0, 0.8), (0.25, 17), (0.5, 77), (0.796, 300), (0.92, 1236), (0.964, 3600), (0.99, 39500)),
        *((0.999, 250e3), (0.9999, 700e3), (1, 2.6e6)),
    ),
    "codex": (
        *((0, 0.8), (0.25, 19.2), (0.5, 94), (0.698, 300), (0.887, 1236), (0.949, 3600), (0.99, 55000)),
        *((0.999, 330e3), (0.9999, 1e6), (1, 2.6e6)),
    ),
}

# token_lengths: by_provider, merged_digitised; append_by_prefix_bin's counts of steps make the curve of the prefix.
PREFIX_TOKENS: dict[str, Curve] = {
    "claude": (
        *((0.0247, 8e3), (0.0535, 16e3), (0.1265, 32e3), (0.2755, 64e3), (0.5, 126e3), (0.763, 256e3)),
        *((0.9746, 790e3), (0.99, 918e3)),
    ),
    "codex": (
        *((0.0292, 8e3), (0.0545, 16e3), (0.1028, 32e3), (0.2409, 64e3), (0.5, 116e3), (0.5775, 128e3)),
        *((0.9, 205e3), (0.99, 231e3)),
    ),
}
APPEND_P50 = {"claude": 857, "codex": 886}
OUTPUT_TOKENS: dict[str, Curve] = {
    "claude": ((0, 2), (0.25, 113), (0.5, 252), (0.9, 1360), (0.99, 5300), (1, 32000)),
    "codex": ((0, 5), (0.25, 86), (0.5, 188), (0.9, 840), (0.99, 3500), (1, 30000)),
}
REASONING_SHARE = 0.41
"""scope.tokens.codex.reasoning_share_of_output."""
HIT_RATE = {"claude": (0.869, 0.979), "codex": (0.782, 0.972)}
"""prefix_cache.hit_rate of steps that a user started, and of those that a tool's result did."""

START_TOKENS = {"claude": 24e3, "codex": 14e3}
"""Ours: the median context of a session's first step; the smallest prefixes of append_by_prefix_bin suggest it."""
WINDOW_TOKENS = {"claude": ((0.45, 185e3), (0.55, 960e3)), "codex": ((1.0, 245e3),)}
"""Ours: share of steps, by the context at which their session compacts; two windows of Claude's, one of Codex's."""
SHRINKS = {"claude": 0.0, "codex": 0.313}
"""context_dynamics.growth.codex_user_steps_shrinking_pct: a new turn drops the reasoning of the one before."""

MODELS = {
    "claude": {
        "claude-opus-4-7": 88575,
        "claude-opus-4-6": 16852,
        "claude-haiku-4-5-20251001": 11040,
        "claude-sonnet-4-6": 10961,
        "claude-opus-4-8": 10869,
        "claude-sonnet-4-5-20250929": 1186,
    },
    "codex": {"gpt-5.5": 103088, "gpt-5.4": 56480, "gpt-5.3-codex": 29715, "gpt-5.3-codex-spark": 3683},
}
"""scope.models_steps."""


class Tool(NamedTuple):
    """How often a tool is called, how long its calls take, and how much they say."""

    calls: int
    """tools.top_calls; of rarer tools ours, so that tools.category_calls and the providers' sums come out."""
    category: str
    positive: float
    """Share of calls with an effective latency above 0: a runner that reports 0.0 s has none."""
    latency_ms: Curve
    """Of those: tools.effective_latency_ms_by_tool, else tools.category_latency_s."""
    result_chars: float
    """Ours: the median."""
    reported: float = 0.0
    """Share of calls whose runner reports a duration of its own (tools.codex_wall_vs_internal.calls)."""
    residual_s: tuple[float, float, float] = (0.01, 0.1, 4.0)
    """By how much the client's clock exceeds that: its p50, p90 and p99."""


_QUICK: Curve = ((0, 3), (0.25, 15), (0.5, 43), (0.9, 480), (0.99, 7300), (1, 60e3))
_SHELL: Curve = ((0, 30), (0.25, 110), (0.5, 300), (0.9, 6000), (0.99, 120e3), (1, 600e3))
_BASH: Curve = (
    *((0, 8), (0.25, 45), (0.412, 125), (0.5, 409), (0.588, 1000), (0.854, 14468), (0.9, 30330.8), (0.927, 60e3)),
    *((0.9895, 307.8e3), (0.9925, 600e3), (1, 9e6)),
)
_EXEC: Curve = (
    *((0, 50), (0.25, 130), (0.5, 323), (0.635, 626), (0.66, 998), (0.675, 1000.2), (0.9, 1002), (0.99, 10e3)),
    (1, 300e3),
)
_STDIN: Curve = (
    *((0, 60), (0.02, 1000.5), (0.12, 1002), (0.3, 4990), (0.5, 5002), (0.62, 9990), (0.666, 12326), (0.77, 29990)),
    *((0.82, 30002), (0.885, 59990), (0.9, 60001), (0.975, 141442), (0.99, 240e3), (1, 900e3)),
)
_EDIT: Curve = ((0, 8), (0.25, 42), (0.5, 95), (0.9, 2236.8), (0.99, 56e3), (1, 3.6e6))
_PLAN: Curve = ((0, 6), (0.25, 30), (0.5, 75), (0.9, 1200), (0.99, 20e3), (1, 120e3))

TOOLS: dict[str, dict[str, Tool]] = {
    "claude": {
        "Bash": Tool(66983, "shell_command", 0.9978, _BASH, 560),
        "Read": Tool(
            32402,
            "file_read_search",
            0.994,
            ((0, 3), (0.25, 14), (0.5, 36), (0.9, 427), (0.99, 7300), (1, 600e3)),
            1900,
        ),
        "Edit": Tool(18458, "file_edit", 0.9903, _EDIT, 180),
        "TaskUpdate": Tool(
            4801, "planning", 0.994, ((0, 6), (0.25, 35), (0.5, 82), (0.9, 1247.2), (0.99, 20e3), (1, 600e3)), 40
        ),
        "Write": Tool(
            3847, "file_edit", 0.9948, ((0, 8), (0.25, 45), (0.5, 98), (0.9, 4465.4), (0.99, 60e3), (1, 3.6e6)), 170
        ),
        "Grep": Tool(3000, "file_read_search", 0.995, _QUICK, 600),
        "Glob": Tool(1477, "file_read_search", 0.995, _QUICK, 300),
        "WebSearch": Tool(
            *(2150, "web_lookup", 0.998),
            ((0, 400), (0.25, 3000), (0.5, 6500), (0.9, 25e3), (0.99, 262e3), (1, 600e3)),
            *(3500, 1.0),
        ),
        "WebFetch": Tool(
            *(1351, "web_lookup", 0.998),
            ((0, 200), (0.25, 2200), (0.5, 6500), (0.9, 150e3), (0.99, 262e3), (1, 600e3)),
            *(2500, 1.0),
        ),
        "ToolSearch": Tool(300, "web_lookup", 0.99, _QUICK, 300),
        "TaskCreate": Tool(1500, "agent_task", 0.998, _PLAN, 60),
        "Agent": Tool(
            *(1300, "agent_task", 0.998),
            ((0, 20), (0.25, 60), (0.5, 20e3), (0.9, 300e3), (0.99, 900e3), (1, 3.6e6)),
            *(3500, 1.0),
        ),
        "TaskOutput": Tool(
            1107, "agent_task", 0.998, ((0, 10), (0.25, 45), (0.5, 100), (0.9, 60e3), (0.99, 600e3), (1, 900e3)), 900
        ),
        "TodoWrite": Tool(1395, "planning", 0.998, _PLAN, 160),
        "ExitPlanMode": Tool(
            300, "planning", 0.998, ((0, 1e3), (0.25, 20e3), (0.5, 90e3), (0.9, 900e3), (0.99, 7.2e6), (1, 2e7)), 4000
        ),
        "SendMessage": Tool(
            978, "other", 0.998, ((0, 10), (0.25, 30), (0.5, 60), (0.9, 600), (0.99, 5000), (1, 60e3)), 120
        ),
        "AskUserQuestion": Tool(
            784, "other", 0.998, ((0, 1e3), (0.25, 15e3), (0.5, 60e3), (0.9, 900e3), (0.99, 1.7e7), (1, 9e7)), 300
        ),
        "BashOutput": Tool(213, "shell_command", 0.99, _QUICK, 500),
        "NotebookEdit": Tool(42, "file_edit", 0.99, _EDIT, 300),
    },
    "codex": {
        "exec_command": Tool(187481, "shell_command", 0.5894, _EXEC, 1500, 0.981, (0.16, 0.27, 8.6)),
        "write_stdin": Tool(62848, "shell_command", 0.723, _STDIN, 650, 0.97, (0.01, 0.1, 14.9)),
        "apply_patch": Tool(
            *(24134, "file_edit", 0.8685),
            ((0, 6), (0.25, 32), (0.5, 59), (0.9, 1217.2), (0.99, 50e3), (1, 600e3)),
            *(250, 0.1, (0.01, 0.41, 3.9)),
        ),
        "shell_command": Tool(7624, "shell_command", 0.6, _SHELL, 1500, 0.8, (0.04, 0.16, 4.0)),
        "shell": Tool(5416, "shell_command", 0.05, _SHELL, 1500),
        "update_plan": Tool(
            800, "planning", 0.9, ((0, 1), (0.25, 5), (0.5, 15), (0.9, 60), (0.99, 400), (1, 5000)), 12
        ),
        "spawn_agent": Tool(
            500, "agent_task", 0.98, ((0, 10), (0.25, 40), (0.5, 90), (0.9, 500), (0.99, 5000), (1, 60e3)), 120
        ),
        "wait_agent": Tool(
            800, "agent_task", 0.98, ((0, 20), (0.25, 5e3), (0.5, 3e4), (0.9, 3e5), (0.99, 9e5), (1, 3.6e6)), 1500
        ),
        "view_image": Tool(200, "file_read_search", 0.95, _QUICK, 60),
        "web_search": Tool(
            200, "web_lookup", 0.99, ((0, 400), (0.25, 2200), (0.5, 5900), (0.9, 62e3), (0.99, 262e3), (1, 6e5)), 2500
        ),
        "list_mcp_resources": Tool(119, "web_lookup", 0.95, _QUICK, 400),
    },
}

ERROR_RATE = {"claude": 0.048291, "codex": 0.052764}
"""tools.error_rate."""
ERROR_ODDS = {"Bash": 1.6, "exec_command": 1.2, "WebFetch": 2.5, "Edit": 0.7, "apply_patch": 0.8, "Read": 0.5}
"""Ours: who fails more, and less, than the others."""

AFFINITY = {
    ("Bash", "Bash"): 2.0,
    ("Read", "Read"): 3.0,
    ("Grep", "Read"): 3.0,
    ("Glob", "Read"): 3.0,
    ("Read", "Edit"): 2.5,
    ("Edit", "Edit"): 3.0,
    ("Edit", "Bash"): 1.5,
    ("Write", "Bash"): 2.0,
    ("TaskCreate", "TaskCreate"): 30.0,
    ("TaskCreate", "TaskUpdate"): 10.0,
    ("WebSearch", "WebSearch"): 12.0,
    ("WebSearch", "WebFetch"): 15.0,
    ("WebFetch", "WebFetch"): 12.0,
    ("Agent", "Agent"): 12.0,
    ("Agent", "TaskOutput"): 15.0,
    ("exec_command", "exec_command"): 1.5,
    ("exec_command", "write_stdin"): 1.3,
    ("write_stdin", "write_stdin"): 4.0,
    ("apply_patch", "exec_command"): 1.3,
    ("apply_patch", "write_stdin"): 0.3,
    ("apply_patch", "apply_patch"): 2.5,
    ("shell_command", "shell_command"): 30.0,
    ("shell", "shell"): 40.0,
    ("spawn_agent", "spawn_agent"): 40.0,
    ("spawn_agent", "wait_agent"): 60.0,
    ("wait_agent", "wait_agent"): 40.0,
}
"""Ours: how many times likelier than by its share alone the second follows the first, before shares are restored."""
