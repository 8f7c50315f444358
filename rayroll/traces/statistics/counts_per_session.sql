-- What a session holds: requests (user turns), steps whose first input is a user's message, steps whose first input is a
-- tool's result, and tool calls.
-- Source: TraceLab, session_internal_counts; facts.json counts.per_session.
WITH units AS (
    UNPIVOT (
        SELECT provider, requests, user_steps AS user_initiated_steps, tool_steps AS tool_initiated_steps, tool_calls
        FROM sessions
    )
    ON requests, user_initiated_steps, tool_initiated_steps, tool_calls INTO NAME counted VALUE value
)
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, counted, unnest(distribution(value))
FROM units
GROUP BY GROUPING SETS ((counted), (provider, counted))
ORDER BY provider, list_position(['requests', 'user_initiated_steps', 'tool_initiated_steps', 'tool_calls'], counted);
