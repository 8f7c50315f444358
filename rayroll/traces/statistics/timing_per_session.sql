-- Seconds of a session, and of which kind. elapsed: first to last event, of sessions that last at all; human: waits for
-- the user; generation: newest input to last output, of each step; tool: effective time of each call. share: of all
-- elapsed time; parts overlap (parallel calls, generation beside a call), so that shares need not add up to 1.
-- Source: TraceLab, session_timing_distribution; facts.json timing_seconds.per_session.
WITH units AS (
    UNPIVOT (
        SELECT provider, elapsed_s AS whole, elapsed_s AS elapsed, human_s AS human, generation_s AS generation,
            tool_s AS tool
        FROM sessions WHERE elapsed_s IS NOT NULL
    )
    ON elapsed, human, generation, tool INTO NAME part VALUE seconds
)
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, part, unnest(distribution(seconds)),
    sum(seconds) / nullif(sum(whole), 0) AS share
FROM units
GROUP BY GROUPING SETS ((part), (provider, part))
ORDER BY provider, list_position(['elapsed', 'human', 'generation', 'tool'], part);
