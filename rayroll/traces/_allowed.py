"""What of a row may be shared: its fields and their kinds, and the names that everybody knows.

Everything that is not here is dropped, or replaced by a pseudonym. To add a name is to say that it tells nothing about
who ran it.
"""

from __future__ import annotations

import re

from rayroll.traces._mcp import PUBLIC_MCP_TOOLS
from rayroll.traces.categories import NAMED, PREFIXES

ROW_FIELDS = {
    "provider": "provider",
    "project": "project",
    "session_id": "session",
    "round_index": "number",
    "round_id": "round",
    "turn_id": "id",
    "model": "model",
    "input_tokens_total": "number",
    "prefix_tokens": "number",
    "newly_append_tokens": "number",
    "claude_uncached_input_tokens": "number",
    "claude_cache_creation_input_tokens": "number",
    "claude_cache_read_input_tokens": "number",
    "output_tokens": "number",
    "reasoning_output_tokens": "number",
    "timing_events": "events",
    "tools": "tools",
    "current_input_event_count": "number",
    "current_user_message_count": "number",
    "current_tool_result_count": "number",
    "current_user_message_chars": "number",
    "current_tool_result_chars": "number",
    "current_input_chars": "number",
    "first_input_event_type": "event_type",
    "is_subagent": "flag",
    "agent_id": "id",
    "parent_session_id": "session",
    "flags": "flags",
    "store": "store",
    "trace_key": "trace_key",
}
EVENT_FIELDS = {
    "event_type": "event_type",
    "timestamp": "time",
    "source": "source",
    "content_chars": "number",
    "tool_call_id": "id",
    "tool_name": "tool",
    "tool_index": "number",
    "result_chars": "number",
    "is_error": "flag",
}
TOOL_FIELDS = {
    "tool_index": "number",
    "tool_name": "tool",
    "tool_call_id": "id",
    "emitted_at": "time",
    "result_at": "time",
    "input_chars": "number",
    "result_chars": "number",
    "tool_wall_latency_ms": "number",
    "tool_internal_latency_ms": "number",
    "is_error": "flag",
    "status": "status",
}

PROVIDERS = {"claude", "codex", "rayroll"}
STORES = {".claude", ".codex"}
EVENT_TYPES = {"user_message", "tool_result", "reasoning", "text", "tool_call", "usage_report"}
STATUSES = {"finished", "unfinished", "aborted"}
FLAGS = {"clock_backwards", "duplicate_result", "made_up_id", "no_usage"}
SOURCES = {
    "user.message",
    "user.content.text",
    "user.content.tool_result",
    "assistant.content.thinking",
    "assistant.content.redacted_thinking",
    "assistant.content.text",
    "assistant.content.tool_use",
    "assistant.content.server_tool_use",
    "event_msg.user_message",
    "event_msg.agent_message",
    "event_msg.agent_reasoning",
    "event_msg.exec_command_end",
    "event_msg.patch_apply_end",
    "event_msg.mcp_tool_call_end",
    "event_msg.token_count",
    "response_item.message",
    "response_item.reasoning",
    "response_item.function_call",
    "response_item.function_call_output",
    "response_item.custom_tool_call",
    "response_item.custom_tool_call_output",
    "response_item.local_shell_call",
    "response_item.web_search_call",
}
_TOOLS_OF_NO_CATEGORY = """
    AskUserQuestion CronCreate CronDelete CronList EnterWorktree ExitWorktree ListMcpResourcesTool Monitor
    NotebookRead ReadMcpResourceTool ScheduleWakeup SendMessage SlashCommand TeamCreate TeamDelete TodoRead
    grep_files js_repl list_dir read_file request_user_input unified_exec wait web_search_call
"""
TOOLS = NAMED | PUBLIC_MCP_TOOLS | frozenset(_TOOLS_OF_NO_CATEGORY.split())
"""Tools that come with an agent, those that have a category by their name (which is published), and those of public MCP
servers. Any other tool of a plugin or an MCP server is somebody's own."""

TOOL_PREFIXES = tuple(PREFIXES)
"""How families of tools begin that have a category by it: that stays, the rest of the name becomes a pseudonym."""

MODEL = re.compile(
    r"""<synthetic>
    | claude(-(opus|sonnet|haiku|instant|fable|latest|\d{1,2}|\d{8}))+ (\[1m\])?
    | gpt-\d{1,2}(\.\d{1,2})?o?(-(codex|mini|nano|max|pro|spark|turbo|chat|latest|oss|\d{1,4}))*
    | o\d(-(mini|pro|preview|deep-research|\d{1,4}))*
    | codex-(mini|auto-review)(-latest)?""",
    re.VERBOSE | re.ASCII,
)
"""Public models, from the words of their makers; a fine-tuned or renamed model has others, and is somebody's own."""

TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:?\d\d)?", re.ASCII)

ID_DIGITS = {"toolu_": 22, "msg_": 24, "req_": 24, "fc_": 24, "ctc_": 24, "ws_": 24, "rs_": 24, "id_": 24}
"""How ids of the two agents begin, and how many hexadecimal digits their pseudonyms get."""
