-- Calls by what kind of work they are (categories.py says which tool is which): how many, and their effective latency in
-- seconds, with its hours and its share of all.
-- Source: TraceLab, tool_category_distribution; facts.json tools.category_calls, category_latency_s, category_hours.
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, category, count(*) AS calls,
    calls / sum(calls) OVER (PARTITION BY grouping(provider), provider) AS share_of_calls,
    coalesce(sum(effective_ms), 0) / 3.6e6 AS hours,
    hours / nullif(sum(hours) OVER (PARTITION BY grouping(provider), provider), 0) AS share_of_time,
    unnest(distribution(effective_ms / 1000))
FROM tools JOIN steps USING (step_id)
GROUP BY GROUPING SETS ((category), (provider, category))
ORDER BY 1, calls DESC, category;
