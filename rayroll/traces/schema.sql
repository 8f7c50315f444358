-- The store. Times are UTC; a step's own moments are derived from its events by the definitions in docs/traces.md.

CREATE TABLE meta (key VARCHAR PRIMARY KEY, value VARCHAR);

-- One model call each, in the order of its session.
CREATE TABLE steps (
    step_id BIGINT PRIMARY KEY,      -- in order of session and round among those loaded together
    trace_key VARCHAR UNIQUE,        -- the row's own: loading it again changes nothing
    provider VARCHAR NOT NULL,       -- claude, codex, rayroll
    session_id VARCHAR NOT NULL,
    round_index INTEGER NOT NULL,
    round_id VARCHAR,
    turn_id VARCHAR,
    "user" VARCHAR,
    project VARCHAR,
    model VARCHAR,
    is_subagent BOOLEAN NOT NULL,
    agent_id VARCHAR,                -- which subagent, where its log says so: each has a context of its own
    first_event_type VARCHAR,        -- of its first input event; NULL: it has none
    trigger VARCHAR,                 -- user, tool; NULL: anything else
    first_at TIMESTAMP,              -- its first event of any type
    input_at TIMESTAMP,              -- the newest input event at or before the first output
    first_output_at TIMESTAMP,
    last_output_at TIMESTAMP,
    last_at TIMESTAMP,
    generation_s DOUBLE,             -- input_at to last_output_at; NULL: not above 0, or unknown
    input_tokens BIGINT,             -- prefix and append
    prefix_tokens BIGINT,
    append_tokens BIGINT,
    output_tokens BIGINT,
    reasoning_tokens BIGINT
);

CREATE TABLE events (
    step_id BIGINT NOT NULL,
    event_index INTEGER NOT NULL,
    type VARCHAR NOT NULL,           -- user_message, tool_result (input); reasoning, text, tool_call (output); usage_report
    happened_at TIMESTAMP,           -- NULL: unknown
    tool_call_id VARCHAR,
    chars BIGINT
);

CREATE TABLE tools (
    step_id BIGINT NOT NULL,
    tool_index INTEGER NOT NULL,
    tool_call_id VARCHAR,
    name VARCHAR NOT NULL,
    category VARCHAR NOT NULL,       -- shell_command, file_edit, file_read_search, planning, agent_task, web_lookup, other
    emitted_at TIMESTAMP,
    result_at TIMESTAMP,
    wall_ms DOUBLE,                  -- by the client's clock; NULL: unfinished, or its clock ran backwards
    internal_ms DOUBLE,              -- what the tool's runner reported
    effective_ms DOUBLE,             -- internal where reported, else wall; NULL: not above 0, or unknown
    is_error BOOLEAN,
    status VARCHAR NOT NULL,         -- finished, unfinished, aborted
    input_chars BIGINT,
    result_chars BIGINT,
    program VARCHAR,                 -- first word of a shell command, where rows have inputs
    command VARCHAR                  -- the whole of it, only where inputs were to be kept
);
