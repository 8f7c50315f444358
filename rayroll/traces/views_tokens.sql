-- What token statistics share: a step beside the one before it, the idle gap before a step, and what a step cost.

-- A step with its context (prefix and append) and its predecessor in the session. Each subagent has a context of its
-- own, so that its steps, those of another and those of the session around them are separate rows of steps, named by
-- the first step of each: context_id.
CREATE OR REPLACE TEMP VIEW contexts AS
SELECT
    *,
    -- What survived into this step and was not there before; a drop, such as a compaction, is 0. NULL: the session's
    -- first step, or one of the two contexts is unknown.
    CASE
        WHEN total_tokens >= 0 AND previous_total_tokens >= 0
        THEN greatest(total_tokens - previous_total_tokens, 0)
    END AS growth_tokens,
    -- New to any cache: growth that is not the previous step's own output, and was prefilled here.
    CASE
        WHEN growth_tokens >= 0 AND append_tokens >= 0
        THEN least(greatest(growth_tokens - previous_output_tokens, 0), append_tokens)
    END AS fresh_tokens
FROM (
    SELECT
        *,
        first_value(step_id) OVER in_session AS context_id,
        lag(step_id) OVER in_session AS previous_step_id,
        lag(round_index) OVER in_session AS previous_round_index,
        lag(model) OVER in_session AS previous_model,
        lag(total_tokens) OVER in_session AS previous_total_tokens,
        lag(coalesce(output_tokens, 0)) OVER in_session AS previous_output_tokens
    FROM (
        SELECT *, coalesce(prefix_tokens + append_tokens, prefix_tokens, append_tokens) AS total_tokens FROM steps
    )
    WINDOW in_session AS (PARTITION BY session_id, is_subagent, agent_id ORDER BY round_index, step_id)
);

-- How long a session's KV cache lay idle before a step, where that is known. A user's step: from the last activity of
-- the step before (events, calls, results) to its own first. A tool's step: the longest of the calls whose results open
-- it. In whole microseconds, so that sums are exact. Only steps with a trigger, a predecessor and any input.
CREATE OR REPLACE TEMP VIEW idle_gaps AS
WITH activity AS (
    SELECT step_id, greatest(any_value(last_at), max(emitted_at), max(result_at)) AS ended_at
    FROM steps LEFT JOIN tools USING (step_id)
    GROUP BY step_id
),
opening AS (
    SELECT step_id, min(event_index) FILTER (WHERE type <> 'tool_result') AS first_other
    FROM events
    GROUP BY step_id
),
places AS (
    -- In the order of round_index and step_id, as one number, for ASOF compares one.
    SELECT step_id, session_id, CAST(round_index AS BIGINT) * 4294967296 + step_id AS place FROM steps
),
calls AS (
    SELECT session_id, place, tool_call_id, max(epoch_us(result_at) - epoch_us(emitted_at)) AS wait_us
    FROM tools JOIN places USING (step_id)
    WHERE tool_call_id IS NOT NULL
    GROUP BY session_id, place, tool_call_id
),
waits AS (
    -- The newest call of that id before the step: an agent may number its calls anew in every step.
    SELECT result.step_id, max(wait_us) FILTER (WHERE wait_us >= 0) AS wait_us
    FROM (
        SELECT step_id, session_id, place, tool_call_id
        FROM events JOIN opening USING (step_id) JOIN places USING (step_id)
        WHERE type = 'tool_result' AND (first_other IS NULL OR event_index < first_other)
    ) AS result
    ASOF JOIN calls
        ON calls.session_id = result.session_id
        AND calls.tool_call_id = result.tool_call_id
        AND calls.place < result.place
    GROUP BY result.step_id
)
SELECT
    step_id,
    previous_step_id,
    provider,
    session_id,
    trigger,
    total_tokens,
    prefix_tokens,
    append_tokens,
    fresh_tokens,
    total_tokens - fresh_tokens AS cacheable_tokens,
    gap_us
FROM (
    SELECT
        contexts.*,
        if(trigger = 'user', epoch_us(first_at) - epoch_us(activity.ended_at), wait_us) AS gap_us
    FROM contexts
    LEFT JOIN activity ON activity.step_id = previous_step_id
    LEFT JOIN waits ON waits.step_id = contexts.step_id
    WHERE trigger IS NOT NULL AND prefix_tokens IS NOT NULL AND fresh_tokens IS NOT NULL AND total_tokens > 0
)
WHERE gap_us >= 0;

-- Active time of the KV cache, in whole microseconds.
CREATE OR REPLACE TEMP VIEW generation_totals AS
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    sum(CAST(round(generation_s * 1e6) AS BIGINT)) AS generation_us
FROM steps
WHERE generation_s > 0
GROUP BY GROUPING SETS ((), (provider));

-- Each step's cost by a price table (rayroll/traces/prices.py): its first line that fits the model. NULL: unpriced.
CREATE OR REPLACE TEMP MACRO step_costs(price_lines) AS TABLE
WITH lines AS (
    SELECT line.model AS pattern, line.append_usd, line.prefix_usd, line.output_usd, line.place
    FROM (
        SELECT unnest(CAST(price_lines AS STRUCT(
            place INTEGER, model VARCHAR, append_usd DOUBLE, prefix_usd DOUBLE, output_usd DOUBLE
        )[])) AS line
    )
),
models AS (
    SELECT names.model, min_by(lines, lines.place) AS price
    FROM (SELECT DISTINCT model FROM steps) AS names
    JOIN lines ON lower(names.model) GLOB lower(lines.pattern)
    GROUP BY names.model
)
SELECT
    steps.step_id,
    steps.provider,
    steps.session_id,
    steps.model,
    price.append_usd AS append_usd_per_mtok,
    price.prefix_usd AS prefix_usd_per_mtok,
    coalesce(append_tokens, 0) * price.append_usd / 1e6 AS append_usd,
    coalesce(prefix_tokens, 0) * price.prefix_usd / 1e6 AS prefix_usd,
    coalesce(output_tokens, 0) * price.output_usd / 1e6 AS output_usd
FROM steps LEFT JOIN models USING (model);
