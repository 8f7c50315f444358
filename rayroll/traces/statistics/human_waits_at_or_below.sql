-- Which share of the waits for the user is no longer than a limit, and which share of all time waited they are.
-- $limits_s = [300,3600]: the limits, in seconds
-- Source: TraceLab, facts.json human_wait.count_share_at_or_below, time_share_from_waits_at_or_below.
SELECT if(grouping(provider) = 1, 'all', provider) AS provider, limit_s,
    count(*) FILTER (wait_s <= limit_s) / count(*) AS count_share,
    coalesce(sum(wait_s) FILTER (wait_s <= limit_s), 0) / sum(wait_s) AS time_share
FROM human_waits, (SELECT unnest(CAST($limits_s AS DOUBLE[])) AS limit_s)
GROUP BY GROUPING SETS ((limit_s), (provider, limit_s))
ORDER BY provider, limit_s;
