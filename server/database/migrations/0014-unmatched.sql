-- expand
-- Answers of sign-ups whose question is none of ours, until an administrator links its text to one.

CREATE TABLE unmatched_answers (
  user_id integer PRIMARY KEY REFERENCES users ON DELETE CASCADE,
  -- As the user wrote it, and in comparing form.
  question text NOT NULL,
  question_key text COLLATE "C" NOT NULL,
  answer_hash text NOT NULL
);
CREATE INDEX unmatched_answers_key ON unmatched_answers (question_key);

-- Texts that were linked: sign-ups that give one answer the question.
CREATE TABLE question_aliases (
  question_key text COLLATE "C" PRIMARY KEY,
  question_id integer NOT NULL REFERENCES questions ON DELETE CASCADE
);
