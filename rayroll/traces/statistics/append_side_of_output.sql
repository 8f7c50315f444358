-- Where a model's output goes when the next step sends it again: into that step's append, or into the prefix that the
-- cache kept. Of neighbouring steps in a session, the first with much output and the second soon after it:
-- prefix_side: the prefix is longer than the whole input before by the output, give or take a tenth of it (512 tokens
-- at least). append_side: it is shorter than that, and the append is long enough to hold the output. Not all are one.
-- $min_output_tokens = 2000: what much output is
-- $max_gap_s = 240: what soon is, from the first step's last output to the second's first event
-- Source: TraceLab, output_append_assignment.
WITH pairs AS (
    SELECT
        later.provider,
        later.previous_model AS model,
        later.previous_output_tokens AS output,
        greatest(512, 0.1 * later.previous_output_tokens) AS slack,
        later.prefix_tokens - later.previous_total_tokens AS gain,
        later.append_tokens
    FROM contexts AS later
    JOIN steps AS earlier ON earlier.step_id = later.previous_step_id
    WHERE later.previous_total_tokens > 0
        AND later.previous_output_tokens >= $min_output_tokens
        AND (epoch_us(later.first_at) - epoch_us(coalesce(earlier.last_output_at, earlier.first_at))) / 1e6
            BETWEEN 0 AND $max_gap_s
)
SELECT
    provider,
    model,
    count(*) AS pairs,
    count(*) FILTER (WHERE abs(gain - output) <= slack) / count(*) AS prefix_side_share,
    count(*) FILTER (WHERE gain < output - slack AND append_tokens >= output - slack) / count(*) AS append_side_share
FROM pairs
GROUP BY provider, model
ORDER BY pairs DESC, provider, model;
