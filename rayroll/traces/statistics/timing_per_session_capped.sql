-- Seconds of a session when nobody is waited for longer than an hour: each human wait counts at most that much, and
-- elapsed is what is left, human, generation and tool together. share: of all elapsed time, adding up to 1.
-- $human_cap_s = 3600: the most that one human wait counts
-- Source: TraceLab, session_timing_distribution; facts.json timing_seconds.per_session_human_gap_capped_1h.
WITH units AS (
    UNPIVOT (
        SELECT provider, human + generation_s + tool_s AS whole, whole AS elapsed, human, generation_s AS generation,
            tool_s AS tool
        FROM (
            SELECT sessions.*, coalesce(capped_s, 0) AS human
            FROM sessions LEFT JOIN (
                SELECT session_id, sum(least(wait_s, $human_cap_s)) AS capped_s FROM human_waits GROUP BY session_id
            ) USING (session_id)
            WHERE elapsed_s IS NOT NULL
        )
    )
    ON elapsed, human, generation, tool INTO NAME part VALUE seconds
)
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, part, unnest(distribution(seconds)),
    sum(seconds) / nullif(sum(whole), 0) AS share
FROM units
GROUP BY GROUPING SETS ((part), (provider, part))
ORDER BY provider, list_position(['elapsed', 'human', 'generation', 'tool'], part);
