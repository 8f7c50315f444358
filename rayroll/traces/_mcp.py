"""MCP servers that anybody may run, and the tools that they come with; both names are their makers', not a user's.

A server's name is what its documentation has one write into an agent's settings. Who calls another server ``github``,
with tools of other names, has them hidden all the same: a name is public only as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PUBLIC_MCP_TOOLS"]

_SERVERS: Mapping[str, str] = {
    "brave-search": "brave_web_search brave_local_search",
    "chrome-devtools": """
        click close_page drag emulate evaluate_script fill fill_form get_console_message get_network_request
        handle_dialog hover list_console_messages list_network_requests list_pages navigate_page new_page
        performance_analyze_insight performance_start_trace performance_stop_trace press_key resize_page select_page
        take_screenshot take_snapshot upload_file wait_for
    """,
    "context7": "resolve-library-id get-library-docs query-docs",
    "fetch": "fetch",
    "filesystem": """
        create_directory directory_tree edit_file get_file_info list_allowed_directories list_directory
        list_directory_with_sizes move_file read_file read_media_file read_multiple_files read_text_file search_files
        write_file
    """,
    "git": """
        git_add git_branch git_checkout git_commit git_create_branch git_diff git_diff_staged git_diff_unstaged git_init
        git_log git_reset git_show git_status
    """,
    "github": """
        add_comment_to_pending_review add_issue_comment create_branch create_issue create_or_update_file
        create_pull_request create_pull_request_review create_repository delete_file fork_repository get_commit
        get_file_contents get_issue get_issue_comments get_job_logs get_latest_release get_me get_pull_request
        get_pull_request_comments get_pull_request_diff get_pull_request_files get_pull_request_reviews
        get_pull_request_status get_release_by_tag get_tag get_workflow_run issue_read issue_write list_branches
        list_commits list_issues list_pull_requests list_releases list_tags list_workflow_jobs list_workflow_runs
        list_workflows merge_pull_request pull_request_read pull_request_review_write push_files run_workflow
        search_code search_issues search_pull_requests search_repositories search_users update_issue
        update_pull_request update_pull_request_branch
    """,
    "linear": """
        create_comment create_issue create_project get_document get_issue get_issue_status get_project get_team get_user
        list_comments list_cycles list_documents list_issue_labels list_issue_statuses list_issues list_my_issues
        list_projects list_teams list_users search_documentation update_issue update_project
    """,
    "memory": """
        add_observations create_entities create_relations delete_entities delete_observations delete_relations
        open_nodes read_graph search_nodes
    """,
    "notion": """
        notion-create-comment notion-create-database notion-create-pages notion-duplicate-page notion-fetch
        notion-get-comments notion-get-teams notion-get-users notion-move-pages notion-search notion-update-database
        notion-update-page
        API-get-block-children API-get-self API-get-user API-get-users API-patch-block-children API-patch-page
        API-post-database-query API-post-page API-post-search API-retrieve-a-block API-retrieve-a-database
        API-retrieve-a-page
    """,
    "playwright": """
        browser_click browser_close browser_console_messages browser_drag browser_evaluate browser_file_upload
        browser_fill_form browser_handle_dialog browser_hover browser_install browser_navigate browser_navigate_back
        browser_navigate_forward browser_network_requests browser_press_key browser_resize browser_run_code
        browser_select_option browser_snapshot browser_tab_close browser_tab_list browser_tab_new browser_tab_select
        browser_tabs browser_take_screenshot browser_type browser_wait_for
    """,
    "postgres": "query",
    "puppeteer": """
        puppeteer_click puppeteer_evaluate puppeteer_fill puppeteer_hover puppeteer_navigate puppeteer_screenshot
        puppeteer_select
    """,
    "sentry": """
        analyze_issue_with_seer find_organizations find_projects find_releases find_teams get_doc get_issue_details
        get_trace_details search_docs search_events search_issues update_issue whoami
    """,
    "sequential-thinking": "sequentialthinking",
    "slack": """
        slack_add_reaction slack_get_channel_history slack_get_thread_replies slack_get_user_profile slack_get_users
        slack_list_channels slack_post_message slack_reply_to_thread
    """,
    "sqlite": "append_insight create_table describe_table list_tables read_query write_query",
    "time": "convert_time get_current_time",
}

PUBLIC_MCP_TOOLS = frozenset(f"mcp__{server}__{tool}" for server, tools in _SERVERS.items() for tool in tools.split())
"""Their names as agents write them: ``mcp__server__tool``."""
