-- Steps alike in all but where their input came from: is an append-heavy step (append 1,024 or more, and a quarter of the
-- input or more) slower than a prefix-heavy one (prefix 4,096 or more, append a tenth of the input at most)? Their time is
-- from the newest input to the last tool call, 50 ms or more and no more than the 99th percentile of its provider, model
-- and newest input's type, of steps that read 4,096 tokens or more. Compared within buckets of one provider, model and
-- newest input's type (not the trigger, which is the first's), a quarter octave of input and half an octave of output,
-- with five of each or more. p_slower: of all pairs, those where the append-heavy step took longer, ties half;
-- cliffs_delta = 2 p_slower - 1; slower_buckets: those whose append-heavy median is the longer one; median_ratio: of the
-- buckets' ratios of medians; best_balanced_accuracy: of the best single threshold on the time over the bucket's
-- prefix-heavy median, for telling the two apart.
-- Source: TraceLab, append_vs_prefix_latency over timing_fit's full-turn segments.
WITH called AS (
    SELECT step_id, max(happened_at) AS called_at FROM events WHERE type = 'tool_call' GROUP BY step_id
),
asked AS (
    SELECT step_id, max_by(type, (happened_at, -event_index)) AS newest, max(happened_at) AS asked_at
    FROM events JOIN called USING (step_id)
    WHERE type IN ('user_message', 'tool_result') AND happened_at <= called_at
    GROUP BY step_id
),
spans AS (
    SELECT
        provider, model, newest, prefix_tokens, append_tokens, input_tokens, output_tokens,
        (epoch_us(called_at) - epoch_us(asked_at)) / 1e6 AS seconds
    FROM steps JOIN called USING (step_id) JOIN asked USING (step_id)
    WHERE input_tokens >= 4096
),
timed AS (
    SELECT *, quantile_cont(seconds, 0.99) OVER (PARTITION BY provider, model, newest) AS most_s
    FROM spans WHERE seconds >= 0.05
),
sided AS (
    SELECT
        provider, seconds,
        concat_ws('|', provider, model, newest, floor(log2(input_tokens) / 0.25),
            if(output_tokens > 0, floor(log2(output_tokens) / 0.5), -1)) AS bucket,
        CASE
            WHEN append_tokens >= 1024 AND append_tokens >= 0.25 * input_tokens THEN 1
            WHEN prefix_tokens >= 4096 AND append_tokens <= 0.10 * input_tokens THEN 0
        END AS appends
    FROM timed
    WHERE seconds <= most_s
),
-- Ranks within a bucket, equal times in the middle of theirs: the sum of one side's tells how many pairs it wins.
ranked AS (
    SELECT
        *,
        rank() OVER (PARTITION BY bucket ORDER BY seconds) + (count(*) OVER (PARTITION BY bucket, seconds) - 1) / 2 AS place
    FROM sided
    WHERE appends IS NOT NULL
),
buckets AS (
    SELECT
        bucket, provider,
        sum(appends) AS n, count(*) - sum(appends) AS m,
        sum(place) FILTER (WHERE appends = 1) - n * (n + 1) / 2 AS won,
        quantile_cont(seconds, 0.5) FILTER (WHERE appends = 0) AS prefix_s,
        quantile_cont(seconds, 0.5) FILTER (WHERE appends = 1) / prefix_s AS ratio
    FROM ranked
    GROUP BY bucket, provider
    HAVING n >= 5 AND m >= 5
),
scoped AS (
    SELECT * FROM buckets
    UNION ALL
    SELECT * REPLACE ('all' AS provider) FROM buckets
),
scores AS (
    SELECT scoped.provider, seconds / prefix_s AS score, sum(appends) AS n, count(*) - sum(appends) AS m
    FROM ranked JOIN scoped USING (bucket)
    GROUP BY ALL
),
-- Called append-heavy: this score and every larger one.
thresholds AS (
    SELECT
        provider,
        (sum(n) OVER (PARTITION BY provider ORDER BY score DESC) / sum(n) OVER (PARTITION BY provider)
            + 1 - sum(m) OVER (PARTITION BY provider ORDER BY score DESC) / sum(m) OVER (PARTITION BY provider)
        ) / 2 AS accuracy
    FROM scores
)
SELECT
    provider,
    count(*) AS buckets,
    sum(won) / sum(n * m) AS p_slower,
    2 * p_slower - 1 AS cliffs_delta,
    count(*) FILTER (WHERE ratio > 1) AS slower_buckets,
    quantile_cont(ratio, 0.5) AS median_ratio,
    any_value(best) AS best_balanced_accuracy
FROM scoped JOIN (SELECT provider, max(accuracy) AS best FROM thresholds GROUP BY provider) USING (provider)
GROUP BY provider
ORDER BY provider;
