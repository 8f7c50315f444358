-- What several statistics share, defined once. A subagent's prompt comes from its parent, not from a person: it opens
-- no request and ends no human wait.

-- A column's spread. Percentiles interpolate linearly between neighbours, as TraceLab's do.
CREATE OR REPLACE TEMP MACRO distribution(x) AS {
    'n': count(x), 'total': sum(x), 'avg': avg(x), 'p25': quantile_cont(x, 0.25), 'p50': quantile_cont(x, 0.5),
    'p90': quantile_cont(x, 0.9), 'p99': quantile_cont(x, 0.99), 'max': max(x)
};

-- The last user message before the first output, of the steps that have one (facts.json: request).
CREATE OR REPLACE TEMP VIEW openings AS
SELECT step_id, max(happened_at) AS opened_at
FROM steps JOIN events USING (step_id)
WHERE type = 'user_message' AND happened_at <= first_output_at AND NOT is_subagent
GROUP BY step_id;

-- Each step's request, counted from 1 in its session; 0: before the first.
CREATE OR REPLACE TEMP VIEW step_requests AS
SELECT step_id, session_id, opened_at,
    count(opened_at) OVER (
        PARTITION BY session_id ORDER BY round_index, step_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS request_index
FROM steps LEFT JOIN openings USING (step_id);

-- Sums of a step's tool calls.
CREATE OR REPLACE TEMP VIEW step_tools AS
SELECT step_id, count(*) AS calls, coalesce(sum(effective_ms), 0) / 1000 AS tool_s FROM tools GROUP BY step_id;

-- User turns; those without output, or whose clock does not advance, are none (facts.json: request, request_e2e).
CREATE OR REPLACE TEMP VIEW requests AS
SELECT session_id, request_index, min(provider) AS provider,
    min(opened_at) AS opened_at,
    max(last_output_at) AS ended_at,
    (epoch_us(ended_at) - epoch_us(min(opened_at))) / 1e6 AS e2e_s,
    coalesce(sum(generation_s), 0) AS generation_s,
    coalesce(sum(tool_s), 0) AS tool_s,
    count(*) AS steps,
    count(*) FILTER (first_event_type = 'user_message') AS user_steps,
    count(*) FILTER (first_event_type = 'tool_result') AS tool_steps,
    coalesce(sum(calls), 0)::BIGINT AS tool_calls
FROM steps JOIN step_requests r USING (step_id, session_id) LEFT JOIN step_tools USING (step_id)
WHERE request_index > 0
GROUP BY session_id, request_index
HAVING e2e_s > 0;

-- The gap between a user message and the event before it in the session, whatever its type; only above 0
-- (facts.json: human_wait). By time, so that a clock that ran backwards makes no wait.
CREATE OR REPLACE TEMP VIEW human_waits AS
SELECT session_id, provider, step_id, happened_at AS ended_at, wait_s
FROM (
    SELECT session_id, provider, step_id, happened_at, type, is_subagent,
        (epoch_us(happened_at) - lag(epoch_us(happened_at)) OVER (
            PARTITION BY session_id ORDER BY happened_at, round_index, step_id, event_index
        )) / 1e6 AS wait_s
    FROM events JOIN steps USING (step_id)
    WHERE happened_at IS NOT NULL
)
WHERE type = 'user_message' AND NOT is_subagent AND wait_s > 0;

-- A session's span and what filled it, in seconds. elapsed_s is NULL without two different times.
CREATE OR REPLACE TEMP VIEW sessions AS
WITH waited AS (SELECT session_id, sum(wait_s) AS human_s FROM human_waits GROUP BY session_id),
asked AS (SELECT session_id, count(*) AS requests FROM requests GROUP BY session_id)
SELECT session_id, min(s.provider) AS provider,
    min(first_at) AS first_at, max(last_at) AS last_at,
    CASE WHEN max(last_at) > min(first_at) THEN (epoch_us(max(last_at)) - epoch_us(min(first_at))) / 1e6 END AS elapsed_s,
    coalesce(any_value(human_s), 0) AS human_s,
    coalesce(sum(generation_s), 0) AS generation_s,
    coalesce(sum(tool_s), 0) AS tool_s,
    coalesce(any_value(requests), 0) AS requests,
    count(*) AS steps,
    count(*) FILTER (first_event_type = 'user_message') AS user_steps,
    count(*) FILTER (first_event_type = 'tool_result') AS tool_steps,
    coalesce(sum(calls), 0)::BIGINT AS tool_calls
FROM steps s LEFT JOIN step_tools USING (step_id) LEFT JOIN waited USING (session_id) LEFT JOIN asked USING (session_id)
GROUP BY session_id;
