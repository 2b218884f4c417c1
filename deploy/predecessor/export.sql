-- Writes the lists by which a registry moves from the older implementation: psql URL -f export.sql, in a private folder.
-- docs/moving-in.md says what to do with the files. It only reads schema auth, in one snapshot.
\set ON_ERROR_STOP on
\set QUIET on
\encoding UTF8
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

COPY (
  SELECT id, name, active, address, creation_date, inep_code, login, phone, responsible, type, website,
    activationkey AS activation_key
  FROM auth.educemaden_organizations ORDER BY id
) TO STDOUT WITH (FORMAT csv, HEADER) \g organizations.csv

-- What doesn't fit stays in its cell, so that the import rejects the row: no role or several, several organizations or a
-- missing one. Of equal names the first one is imported, so active users come first.
COPY (
  WITH given_roles AS (
    SELECT users_id, string_agg(DISTINCT
      CASE roles WHEN 0 THEN 'ROLE_ADMIN' WHEN 1 THEN 'ROLE_INSTITUTION' WHEN 2 THEN 'ROLE_CLIENT' ELSE roles::text END, ' ') AS role
    FROM auth.users_roles GROUP BY users_id
  ), memberships AS (
    SELECT users_id, string_agg(DISTINCT educemaden_organizations_id::text, ' ') AS organization
    FROM auth.users_educemaden_organizations GROUP BY users_id
  ), provider_keys AS (
    SELECT DISTINCT ON (users_id) users_id, activationkey
    FROM auth.users_provider_activationkey ORDER BY users_id, id DESC
  ), given_answers AS (
    SELECT id AS users_id, 0 AS place, securityquestion AS question, securityanswer AS answer FROM auth.users
    UNION ALL
    SELECT a.users_id, a.id, q.question, a.answer FROM auth.forgotpassword_questions_users_answers a
    JOIN auth.forgotpassword_questions q ON q.id = a.forgotpassword_questions_id
  ), answers AS (
    SELECT users_id, jsonb_agg(jsonb_build_object('question', regexp_replace(question, '[[:cntrl:]]+', ' ', 'g'),
      'answer', answer) ORDER BY place) AS pairs
    FROM given_answers WHERE question ~ '\S' AND answer ~ '\S' GROUP BY users_id
  )
  SELECT u.id, u.username, u.nickname, u.dateofborn, u.gender, u.state, u.city,
    nullif(btrim(u.institutiontype::text), 'X') AS institutiontype, nullif(btrim(u.institution), 'X') AS institution,
    u.termsofusage, r.role, u.active, m.organization AS organization_id, btrim(u.password) AS password_hash,
    CASE WHEN r.role = 'ROLE_INSTITUTION' AND u.active = 1 THEN k.activationkey END AS provider_key,
    a.pairs AS security_answers
  FROM auth.users u
  LEFT JOIN given_roles r ON r.users_id = u.id
  LEFT JOIN memberships m ON m.users_id = u.id
  LEFT JOIN provider_keys k ON k.users_id = u.id
  LEFT JOIN answers a ON a.users_id = u.id
  ORDER BY (u.active = 1) DESC, u.id
) TO STDOUT WITH (FORMAT csv, HEADER) \g users.csv

-- What is doubtful, or isn't moved.
COPY (
  WITH given_roles AS (
    SELECT users_id, array_agg(DISTINCT roles) AS roles FROM auth.users_roles GROUP BY users_id
  ), memberships AS (
    SELECT m.users_id, count(DISTINCT m.educemaden_organizations_id) AS organizations,
      min(m.educemaden_organizations_id) FILTER (WHERE o.id IS NULL) AS missing,
      min(coalesce(owner.id, provided.educemaden_organizations_id)) AS key_of
    FROM auth.users_educemaden_organizations m
    LEFT JOIN auth.educemaden_organizations o ON o.id = m.educemaden_organizations_id
    LEFT JOIN auth.educemaden_organizations owner ON owner.activationkey = m.activationkey
    LEFT JOIN auth.users_provider_activationkey k ON k.activationkey = m.activationkey
    LEFT JOIN auth.users_educemaden_organizations provided ON provided.users_id = k.users_id
    GROUP BY m.users_id
  ), provider_keys AS (
    SELECT users_id, count(*) AS keys FROM auth.users_provider_activationkey GROUP BY users_id
  ), blanks AS (
    SELECT DISTINCT a.users_id FROM auth.forgotpassword_questions_users_answers a
    LEFT JOIN auth.forgotpassword_questions q ON q.id = a.forgotpassword_questions_id
    WHERE coalesce(q.question, '') !~ '\S' OR a.answer !~ '\S'
  )
  SELECT u.id, u.username AS name, n.note FROM auth.users u
  LEFT JOIN given_roles r ON r.users_id = u.id
  LEFT JOIN memberships m ON m.users_id = u.id
  LEFT JOIN provider_keys k ON k.users_id = u.id
  LEFT JOIN blanks b ON b.users_id = u.id,
  LATERAL (SELECT u.active = 1 AND r.roles = ARRAY[1] AS may_have_key) may, LATERAL (VALUES
    (r.roles IS NULL, 'has no role: choose one'),
    (cardinality(r.roles) > 1, 'has several roles: choose one'),
    (0 = ANY (r.roles), 'is an administrator: is not imported'),
    (u.password !~ '^\s*\$2[aby]\$\d\d\$.{53}\s*$', 'has no bcrypt hash: set a password'),
    (u.securityquestion ~ '\S' AND coalesce(u.securityanswer, '') !~ '\S',
      'has the question of a sign-up without its answer: ' || u.securityquestion),
    (u.avatar ~ '\S', 'has an avatar, which is not moved: ' || u.avatar),
    (u.active = 1 AND m.users_id IS NULL,
      'is active without an organization; institution: ' || coalesce(u.institution, 'none')),
    (m.missing IS NOT NULL, 'is a member of organization ' || m.missing || ', which is missing; the key used is of '
      || coalesce('organization ' || m.key_of, 'none that is known')),
    (m.organizations > 1, 'is a member of several organizations: choose one'),
    (k.keys > 1 AND may_have_key, 'has ' || k.keys || ' provider keys: the newest one is moved'),
    (k.keys > 0 AND may_have_key IS NOT TRUE, 'has a provider key, but is no active ROLE_INSTITUTION: it is not moved'),
    (b.users_id IS NOT NULL, 'has answered a question that is missing, or left the answer blank')
  ) AS n (applies, note) WHERE n.applies
  UNION ALL
  SELECT id, name, 'organization has no activation key: gets one'
  FROM auth.educemaden_organizations WHERE activationkey IS NULL
  ORDER BY id, note
) TO STDOUT WITH (FORMAT csv, HEADER) \g notes.csv

\pset format unaligned
\pset tuples_only on
SELECT regexp_replace(question, '[[:cntrl:]]+', ' ', 'g') FROM auth.forgotpassword_questions WHERE question ~ '\S' ORDER BY id
\g questions.txt
SELECT regexp_replace(question, '[[:cntrl:]]+', ' ', 'g') FROM auth.forgotpassword_questions
WHERE question ~ '\S' AND active IS DISTINCT FROM 1 ORDER BY id
\g retired-questions.txt
SELECT (SELECT count(*) FROM auth.educemaden_organizations) || ' organizations, ' || (SELECT count(*) FROM auth.users) || ' users';
COMMIT;
