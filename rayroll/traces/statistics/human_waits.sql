-- Seconds between a user message and the event before it in the session, whatever its type; only those above 0.
-- (TraceLab's older definition began at the last model output before, and only counted messages that open a request.)
-- Source: TraceLab, facts.json human_wait, definitions.human_wait.
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, unnest(distribution(wait_s))
FROM human_waits
GROUP BY GROUPING SETS ((), (provider))
ORDER BY provider;
