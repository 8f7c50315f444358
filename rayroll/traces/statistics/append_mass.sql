-- Where appended tokens are: the share of steps that append at least so many, and the share of all appended tokens that
-- those few bring.
-- $min_tokens = [1000,10000,100000]: one row for each
-- Source: TraceLab, prefix_append_distribution (its append-weighted bins).
WITH limits AS (SELECT DISTINCT unnest(CAST($min_tokens AS BIGINT[])) AS min_tokens)
SELECT
    if(grouping(provider) = 1, 'all', provider) AS provider,
    min_tokens,
    count(*) FILTER (WHERE append_tokens >= min_tokens) AS steps,
    count(*) FILTER (WHERE append_tokens >= min_tokens) / count(*) AS steps_share,
    coalesce(sum(append_tokens) FILTER (WHERE append_tokens >= min_tokens), 0) / nullif(sum(append_tokens), 0)
        AS tokens_share
FROM steps CROSS JOIN limits
WHERE append_tokens >= 0
GROUP BY GROUPING SETS ((min_tokens), (provider, min_tokens))
ORDER BY ALL;
