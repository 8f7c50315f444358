-- Decode speed without the wait for the first token, of steps whose agent tells how many tokens were reasoning: the
-- others, by the span from the end of reasoning to the last text or call (of a step without a reasoning event, or with
-- none after it, from the first text or call). ttft_residual: from the newest input to the end of reasoning, minus
-- what the reasoning tokens take at the provider's speed over all such steps: what was waited before the first token.
-- Source: TraceLab, trace_facts/paper_macros (mediancodecdecodespeed, mediancodecdecodespeedttft).
WITH moments AS (
    SELECT
        step_id,
        max(happened_at) FILTER (WHERE type = 'reasoning') AS reasoned_at,
        count(happened_at) FILTER (WHERE type IN ('text', 'tool_call')) AS says,
        min(happened_at) FILTER (WHERE type IN ('text', 'tool_call')) AS first_said_at,
        max(happened_at) FILTER (WHERE type IN ('text', 'tool_call')) AS last_said_at
    FROM events
    GROUP BY step_id
),
asked AS (
    SELECT step_id, max(happened_at) AS asked_at
    FROM events JOIN moments USING (step_id)
    WHERE type IN ('user_message', 'tool_result') AND happened_at <= reasoned_at
    GROUP BY step_id
),
spans AS (
    SELECT
        provider,
        reasoning_tokens,
        output_tokens - reasoning_tokens AS said_tokens,
        CASE
            WHEN last_said_at >= reasoned_at THEN epoch_us(last_said_at) - epoch_us(reasoned_at)
            WHEN says >= 2 THEN epoch_us(last_said_at) - epoch_us(first_said_at)
        END / 1e6 AS said_s,
        (epoch_us(reasoned_at) - epoch_us(asked_at)) / 1e6 AS reasoned_s
    FROM steps JOIN moments USING (step_id) LEFT JOIN asked USING (step_id)
    WHERE reasoning_tokens > 0
),
scoped AS (
    SELECT * FROM spans
    UNION ALL
    SELECT * REPLACE ('all' AS provider) FROM spans
),
speeds AS (
    SELECT
        *,
        said_s > 0 AND said_tokens > 0 AS is_timed,
        sum(said_s) FILTER (WHERE said_s > 0 AND said_tokens > 0) OVER of_provider
            / sum(said_tokens) FILTER (WHERE said_s > 0 AND said_tokens > 0) OVER of_provider AS token_s
    FROM scoped
    WINDOW of_provider AS (PARTITION BY provider)
)
SELECT
    provider,
    count(*) FILTER (WHERE is_timed) AS steps,
    quantile_cont(said_tokens / said_s, 0.5) FILTER (WHERE is_timed) AS p50_tokens_per_s,
    count(*) FILTER (WHERE reasoned_s > 0) AS ttft_steps,
    quantile_cont(reasoned_s - reasoning_tokens * token_s, 0.5) FILTER (WHERE reasoned_s > 0) AS ttft_residual_p50_s
FROM speeds
GROUP BY provider
ORDER BY provider;
