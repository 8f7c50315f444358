-- What an ideal prefix cache would do that only gives a session up after it lay idle for ttl_s. Of each step with a
-- known idle gap (prefix_idle_gap): fresh tokens are prefilled in any case, the rest of its input is cacheable. A gap
-- up to the ttl (the limit included) is a hit: only fresh is prefilled. A longer one is a miss: the whole input is.
-- Each step by its own gap; a miss does not make later ones worse. hit_rate: cacheable tokens of hits by all input.
-- storage_ratio: R, the sum of min(gap, ttl) by the sum of generation spans, for no one knows in advance that a gap
-- will outlast the ttl. amplification: prefilled tokens by fresh ones. optimal_hit_rate: with no ttl at all.
-- observed_*: what the real cache did on the same steps (prefix, append).
-- $ttl_s = [60,300,3600]: seconds that an idle session is held, one sweep for each
-- Source: TraceLab, eviction_tradeoff.
WITH ttls AS (
    SELECT ttl_s, CAST(round(ttl_s * 1e6) AS BIGINT) AS ttl_us
    FROM (SELECT DISTINCT unnest(CAST($ttl_s AS DOUBLE[])) AS ttl_s)
),
swept AS (
    SELECT
        if(grouping(provider) = 1, 'all', provider) AS provider,
        ttl_s,
        count(*) AS steps,
        sum(total_tokens) AS total_tokens,
        sum(prefix_tokens) AS prefix_tokens,
        sum(append_tokens) AS append_tokens,
        sum(fresh_tokens) AS fresh_tokens,
        sum(cacheable_tokens) AS cacheable_tokens,
        sum(if(gap_us <= ttl_us, cacheable_tokens, 0)) AS hit_tokens,
        sum(least(gap_us, ttl_us)) AS held_us
    FROM idle_gaps CROSS JOIN ttls
    GROUP BY GROUPING SETS ((ttl_s), (provider, ttl_s))
)
SELECT
    provider,
    ttl_s,
    steps,
    hit_tokens / nullif(total_tokens, 0) AS hit_rate,
    held_us / nullif(generation_us, 0) AS storage_ratio,
    (total_tokens - hit_tokens) / nullif(fresh_tokens, 0) AS amplification,
    cacheable_tokens / nullif(total_tokens, 0) AS optimal_hit_rate,
    prefix_tokens / nullif(total_tokens, 0) AS observed_hit_rate,
    append_tokens / nullif(fresh_tokens, 0) AS observed_amplification
FROM swept LEFT JOIN generation_totals USING (provider)
ORDER BY provider, ttl_s;
