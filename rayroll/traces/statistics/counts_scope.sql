-- How much was recorded. A session is all steps of one session id; a request is one user turn; a step is one model call.
-- Users are those who are named (a sanitized trace names nobody: NULL). sessions_with_time last longer than nothing.
-- Source: TraceLab, facts.json scope.
WITH of_sessions AS (
    SELECT if(grouping(provider) = 1, 'all', provider) AS provider,
        count(*) AS sessions, count(elapsed_s) AS sessions_with_time, sum(requests)::BIGINT AS requests
    FROM sessions GROUP BY GROUPING SETS ((), (provider))
),
of_steps AS (
    SELECT if(grouping(provider) = 1, 'all', provider) AS provider,
        nullif(count(DISTINCT "user"), 0) AS users, count(*) AS steps, coalesce(sum(calls), 0)::BIGINT AS tool_calls,
        min(first_at) AS first_at, max(last_at) AS last_at
    FROM steps LEFT JOIN step_tools USING (step_id) GROUP BY GROUPING SETS ((), (provider))
)
SELECT provider, users, sessions, sessions_with_time, requests, steps, tool_calls, first_at, last_at
FROM of_steps JOIN of_sessions USING (provider)
ORDER BY provider;
