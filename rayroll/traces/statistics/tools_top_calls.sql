-- The most called tools of each provider, and their share of its calls.
-- $top = 5: how many of each
-- Source: TraceLab, facts.json tools.top_calls.
SELECT provider, name, count(*) AS calls, calls / sum(calls) OVER (PARTITION BY provider) AS share
FROM tools JOIN steps USING (step_id)
GROUP BY provider, name
QUALIFY row_number() OVER (PARTITION BY provider ORDER BY calls DESC, name) <= $top
ORDER BY provider, calls DESC, name;
