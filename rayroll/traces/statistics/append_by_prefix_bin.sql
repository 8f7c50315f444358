-- How much a step appends, by how much of its input was cached. Bins double, in units of 1,024 tokens, from below 1k to
-- 256k and more; a bin that no step of the provider falls into has 0 steps.
-- Source: TraceLab, append_by_prefix_bin.
WITH bins(place, bin, low, high) AS (
    VALUES
        (0, '<1k', 0, 1024),
        (1, '1-2k', 1024, 2048),
        (2, '2-4k', 2048, 4096),
        (3, '4-8k', 4096, 8192),
        (4, '8-16k', 8192, 16384),
        (5, '16-32k', 16384, 32768),
        (6, '32-64k', 32768, 65536),
        (7, '64-128k', 65536, 131072),
        (8, '128-256k', 131072, 262144),
        (9, '>256k', 262144, NULL)
),
counted AS (
    SELECT provider, prefix_tokens, append_tokens
    FROM steps
    WHERE prefix_tokens >= 0 AND append_tokens >= 0
    UNION ALL
    SELECT 'all', prefix_tokens, append_tokens
    FROM steps
    WHERE prefix_tokens >= 0 AND append_tokens >= 0
)
SELECT
    providers.provider,
    bins.bin,
    count(append_tokens) AS steps,
    avg(append_tokens) AS avg,
    quantile_cont(append_tokens, 0.5) AS p50,
    quantile_cont(append_tokens, 0.9) AS p90,
    quantile_cont(append_tokens, 0.99) AS p99
FROM (SELECT DISTINCT provider FROM counted) AS providers
CROSS JOIN bins
LEFT JOIN counted
    ON counted.provider = providers.provider
    AND prefix_tokens >= low
    AND (high IS NULL OR prefix_tokens < high)
GROUP BY providers.provider, bins.bin, bins.place
ORDER BY providers.provider, bins.place;
