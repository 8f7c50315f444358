-- Sessions in which the user is never waited for: one prompt, and the agent to itself.
-- Source: TraceLab, facts.json timing_seconds.sessions_without_any_positive_human_wait_pct.
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, count(*) AS sessions,
    count(*) FILTER (human_s = 0) AS without_wait, without_wait / count(*) AS share
FROM sessions
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
