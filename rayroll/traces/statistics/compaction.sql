-- Compactions: a step whose context is at least 64,000 tokens below the step before it (a major reduction), that one at
-- 75 % of the session's largest input or more, and none of the next three steps back at 75 % of it; a drop that no step
-- follows is not known to be one. Steps with a trigger; the trigger is that of the step after the drop.
-- avg, p90 and p99 are of compactions in a session, over all sessions or over those with any.
-- $min_drop_tokens = 64000: the smallest drop that is a major reduction
-- $near_limit = 0.75: from what share of the session's largest input it must start
-- $rebound = 0.75: the share of the level before at which the context has come back
-- Source: TraceLab, session_compaction_counts.
WITH levels AS (
    SELECT
        provider,
        session_id,
        trigger,
        total_tokens,
        previous_total_tokens,
        max(total_tokens) OVER in_session AS largest_tokens,
        max(total_tokens) OVER (
            PARTITION BY context_id ORDER BY round_index, step_id ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING
        ) AS next_tokens
    FROM contexts
    WINDOW in_session AS (PARTITION BY context_id)
),
drops AS (
    SELECT
        *,
        is_major
            AND previous_total_tokens >= $near_limit * largest_tokens
            AND coalesce(next_tokens < $rebound * previous_total_tokens, false) AS is_compaction
    FROM (
        SELECT
            *,
            trigger IS NOT NULL
                AND coalesce(previous_total_tokens - total_tokens >= $min_drop_tokens, false) AS is_major
        FROM levels
    )
),
counts AS (
    SELECT
        provider,
        session_id,
        count(*) FILTER (WHERE is_major) AS major,
        count(*) FILTER (WHERE is_compaction) AS compactions,
        count(*) FILTER (WHERE is_compaction AND trigger = 'user') AS by_user,
        count(*) FILTER (WHERE is_compaction AND trigger = 'tool') AS by_tool
    FROM drops
    GROUP BY provider, session_id
)
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    count(*) AS sessions,
    coalesce(sum(major), 0) AS major_reductions,
    coalesce(sum(compactions), 0) AS compactions,
    count(*) FILTER (WHERE compactions > 0) AS sessions_with_any,
    count(*) FILTER (WHERE compactions > 0) / nullif(count(*), 0) AS sessions_with_any_share,
    avg(compactions) AS avg_all_sessions,
    avg(compactions) FILTER (WHERE compactions > 0) AS avg_compacting,
    quantile_cont(compactions, 0.9) FILTER (WHERE compactions > 0) AS p90_compacting,
    quantile_cont(compactions, 0.99) FILTER (WHERE compactions > 0) AS p99_compacting,
    coalesce(sum(by_user), 0) AS user_initiated,
    coalesce(sum(by_tool), 0) AS tool_initiated
FROM counts
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
