"""The types of records that Codex is known to write; any other is passed over and counted."""

from __future__ import annotations

from rayroll.traces.formats import names

__all__ = ["EVENTS", "ITEMS", "TOP_TYPES"]

TOP_TYPES = names("session_meta turn_context response_item event_msg compacted world_state")
ITEMS = names("""
    message reasoning function_call function_call_output custom_tool_call custom_tool_call_output local_shell_call
    web_search_call tool_search_call tool_search_output image_generation_call ghost_snapshot compaction
    compaction_summary context_compaction other
""")
EVENTS = names("""
    user_message agent_message agent_reasoning agent_reasoning_raw_content agent_reasoning_section_break token_count
    task_started task_complete turn_started turn_complete turn_aborted turn_diff context_compacted compacted error
    stream_error warning background_event exec_command_begin exec_command_end exec_command_output_delta
    patch_apply_begin patch_apply_updated patch_apply_end mcp_tool_call_begin mcp_tool_call_end web_search_begin
    web_search_end view_image_tool_call image_generation_begin image_generation_end entered_review_mode
    exited_review_mode plan_update item_started item_completed thread_name_updated thread_rolled_back
    thread_settings_applied undo_started undo_completed session_configured dynamic_tool_call_request
    dynamic_tool_call_response guardian_assessment collab_agent_spawn_begin collab_agent_spawn_end
    collab_agent_interaction_begin collab_agent_interaction_end collab_waiting_begin collab_waiting_end
    collab_close_begin collab_close_end collab_resume_begin collab_resume_end sub_agent_activity
""")
