-- From the view `lines` (place, json, damaged: its file where it is no JSON) to the store's tables, set by set. Nothing is fatal:
-- what a row lacks is NULL, and a value of the wrong type, or beyond reason, is as if it were lacking.

-- Sums and differences of what passes here stay far from the ends of their types.
CREATE OR REPLACE TEMP MACRO amount(x) AS CASE WHEN x BETWEEN 0 AND 1e12 THEN x END;
CREATE OR REPLACE TEMP MACRO moment(written) AS CASE
    WHEN try_cast(written AS TIMESTAMPTZ)
        BETWEEN TIMESTAMPTZ '1970-01-01 00:00:00+00' AND TIMESTAMPTZ '2200-01-01 00:00:00+00'
    THEN make_timestamp(epoch_us(try_cast(written AS TIMESTAMPTZ)))
END;

CREATE TEMP TABLE parsed AS
SELECT place, damaged,
    coalesce(r.provider, nullif(split_part(r.session_id, ':', 1), r.session_id), 'unknown') AS provider,
    -- Rows that came without their key get TraceLab's: provider, session, round.
    coalesce(r.trace_key, concat_ws(':', provider, r.session_id, coalesce(r.round_id, r.round_index::VARCHAR, md5(json))))
        AS trace_key,
    nullif(r.session_id, '') AS session_id,
    r
FROM (
    SELECT place, json, damaged, json_transform(json, '{
        "provider": "VARCHAR", "session_id": "VARCHAR", "round_index": "INTEGER", "round_id": "VARCHAR",
        "turn_id": "VARCHAR", "user": "VARCHAR", "project": "VARCHAR", "model": "VARCHAR", "trace_key": "VARCHAR",
        "is_subagent": "BOOLEAN", "agent_id": "VARCHAR", "first_input_event_type": "VARCHAR",
        "input_tokens_total": "BIGINT", "prefix_tokens": "BIGINT", "newly_append_tokens": "BIGINT",
        "output_tokens": "BIGINT", "reasoning_output_tokens": "BIGINT",
        "timing_events": [{"event_type": "VARCHAR", "timestamp": "VARCHAR", "tool_call_id": "VARCHAR",
                           "content_chars": "BIGINT", "result_chars": "BIGINT"}],
        "tools": [{"tool_name": "VARCHAR", "tool_call_id": "VARCHAR", "input": "JSON",
                   "emitted_at": "VARCHAR", "result_at": "VARCHAR", "input_chars": "BIGINT", "result_chars": "BIGINT",
                   "tool_wall_latency_ms": "DOUBLE", "tool_internal_latency_ms": "DOUBLE",
                   "is_error": "BOOLEAN", "status": "VARCHAR"}]
    }') AS r
    FROM lines
);

-- Which of them are new, and their numbers: narrow, so that sorting moves no payload.
CREATE TEMP TABLE fresh AS
WITH once AS (
    SELECT trace_key, min(place) AS place FROM parsed WHERE session_id IS NOT NULL GROUP BY trace_key
)
SELECT place,
    (SELECT coalesce(max(step_id) + 1, 0) FROM steps)
        + row_number() OVER (ORDER BY session_id, r.round_index NULLS LAST, place) - 1 AS step_id
FROM parsed JOIN once USING (place, trace_key) ANTI JOIN steps USING (trace_key);

CREATE TEMP TABLE fresh_events AS
SELECT step_id, index - 1 AS event_index, e.event_type AS type, moment(e.timestamp) AS happened_at,
    e.tool_call_id, amount(coalesce(e.content_chars, e.result_chars)) AS chars
FROM (
    SELECT step_id, unnest(r.timing_events) AS e, generate_subscripts(r.timing_events, 1) AS index
    FROM fresh JOIN parsed USING (place)
)
WHERE e.event_type IS NOT NULL;

INSERT INTO events BY NAME SELECT * FROM fresh_events ORDER BY step_id, event_index;

INSERT INTO steps BY NAME
WITH moments AS (
    SELECT step_id,
        arg_min(type, event_index) AS first_type,
        arg_min(type, event_index) FILTER (type IN ('user_message', 'tool_result')) AS first_input_type,
        min(happened_at) AS first_at, max(happened_at) AS last_at,
        min(happened_at) FILTER (type IN ('reasoning', 'text', 'tool_call')) AS first_output_at,
        max(happened_at) FILTER (type IN ('reasoning', 'text', 'tool_call')) AS last_output_at
    FROM fresh_events GROUP BY step_id
),
inputs AS (
    SELECT step_id, max(happened_at) AS input_at
    FROM fresh_events JOIN moments USING (step_id)
    WHERE type IN ('user_message', 'tool_result') AND happened_at <= first_output_at
    GROUP BY step_id
)
SELECT step_id, trace_key, provider, p.session_id,
    coalesce(r.round_index, row_number() OVER (PARTITION BY p.session_id ORDER BY step_id) - 1) AS round_index,
    r.round_id, r.turn_id, r."user", r.project, r.model, coalesce(r.is_subagent, false) AS is_subagent, r.agent_id,
    coalesce(r.first_input_event_type, first_input_type) AS first_event_type,
    CASE coalesce(first_type, r.first_input_event_type)
        WHEN 'user_message' THEN 'user' WHEN 'tool_result' THEN 'tool' END AS trigger,
    first_at, input_at, first_output_at, last_output_at, last_at,
    CASE WHEN last_output_at > input_at THEN (epoch_us(last_output_at) - epoch_us(input_at)) / 1e6 END AS generation_s,
    amount(r.prefix_tokens) AS prefix_tokens, amount(r.newly_append_tokens) AS append_tokens,
    coalesce(amount(r.input_tokens_total), amount(r.prefix_tokens) + amount(r.newly_append_tokens)) AS input_tokens,
    amount(r.output_tokens) AS output_tokens, amount(r.reasoning_output_tokens) AS reasoning_tokens
FROM fresh JOIN parsed p USING (place) LEFT JOIN moments USING (step_id) LEFT JOIN inputs USING (step_id)
ORDER BY step_id;

CREATE TEMP TABLE fresh_tools AS
SELECT step_id, index - 1 AS tool_index, t.tool_call_id, coalesce(nullif(trim(t.tool_name), ''), 'unknown') AS name,
    moment(t.emitted_at) AS emitted_at, moment(t.result_at) AS result_at,
    coalesce(t.tool_wall_latency_ms, (epoch_us(result_at) - epoch_us(emitted_at)) / 1e3) AS told_ms,
    amount(told_ms) AS wall_ms, amount(t.tool_internal_latency_ms) AS internal_ms,
    nullif(greatest(coalesce(internal_ms, wall_ms), 0), 0) AS effective_ms,
    t.is_error,
    CASE WHEN t.status IN ('finished', 'unfinished', 'aborted') THEN t.status
        WHEN result_at IS NULL AND told_ms IS NULL THEN 'unfinished' ELSE 'finished' END AS status,
    amount(t.input_chars) AS input_chars, amount(t.result_chars) AS result_chars, t.input
FROM (
    SELECT step_id, unnest(r.tools) AS t, generate_subscripts(r.tools, 1) AS index
    FROM fresh JOIN parsed USING (place)
)
WHERE t.tool_name IS NOT NULL OR t.tool_call_id IS NOT NULL;

INSERT INTO tools BY NAME
WITH kinds AS (SELECT name, category_of(name) AS category FROM (SELECT DISTINCT name FROM fresh_tools)),
told AS (
    SELECT t.* EXCLUDE (told_ms, input), category,
        CASE WHEN category = 'shell_command' AND input IS NOT NULL THEN command_of(input::VARCHAR) END AS command
    FROM fresh_tools t JOIN kinds USING (name)
)
SELECT * REPLACE (CASE WHEN getvariable('keeps_inputs') THEN command END AS command), program_of(command) AS program
FROM told
ORDER BY step_id, tool_index;
