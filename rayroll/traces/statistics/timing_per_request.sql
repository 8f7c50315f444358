-- Seconds of a request. e2e: from the user message that opens it to its last output, waits for tools included, the next
-- wait for the user not; generation and tool as in timing_per_session. share: of all e2e time.
-- Source: TraceLab, session_timing_distribution; facts.json timing_seconds.per_request, definitions.request_e2e.
WITH units AS (
    UNPIVOT (
        SELECT provider, e2e_s AS whole, e2e_s AS e2e, generation_s AS generation, tool_s AS tool FROM requests
    )
    ON e2e, generation, tool INTO NAME part VALUE seconds
)
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, part, unnest(distribution(seconds)),
    sum(seconds) / nullif(sum(whole), 0) AS share
FROM units
GROUP BY GROUPING SETS ((part), (provider, part))
ORDER BY provider, list_position(['e2e', 'generation', 'tool'], part);
