-- Compactions by TraceLab's other definition, another number than compaction: a drop of at least 50,000 tokens; the
-- step after it still under 90 % of the level before; at least two steps after the drop; and later in the session a
-- context at least 10,000 tokens above the level that it dropped to.
-- $min_drop_tokens = 50000: the smallest drop
-- Source: TraceLab, as printed in facts.json (compaction_alt_definition).
WITH levels AS (
    SELECT
        provider,
        session_id,
        total_tokens,
        previous_total_tokens,
        lead(total_tokens) OVER in_session AS next_tokens,
        count(*) OVER later AS later_steps,
        max(total_tokens) OVER later AS later_largest_tokens
    FROM contexts
    WINDOW
        in_session AS (PARTITION BY context_id ORDER BY round_index, step_id),
        later AS (
            PARTITION BY context_id
            ORDER BY round_index, step_id ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        )
),
counts AS (
    SELECT
        provider,
        session_id,
        count(*) FILTER (
            WHERE previous_total_tokens - total_tokens >= $min_drop_tokens
                AND next_tokens < 0.9 * previous_total_tokens
                AND later_steps >= 2
                AND later_largest_tokens >= total_tokens + 10000
        ) AS compactions
    FROM levels
    GROUP BY provider, session_id
)
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    count(*) AS sessions,
    coalesce(sum(compactions), 0) AS compactions,
    count(*) FILTER (WHERE compactions > 0) AS sessions_with_any,
    avg(compactions) AS avg_all_sessions,
    avg(compactions) FILTER (WHERE compactions > 0) AS avg_compacting
FROM counts
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
