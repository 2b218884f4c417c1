/** A database of the older implementation with any number of users: the id determines which oddity a user has. */
import { createHash } from 'node:crypto'
import bcrypt from 'bcrypt'
import pg from 'pg'

/** Passwords; user `id` has number `id % passwords.length`. */
export const passwords = [
  'cavalo-marinho-azul-1',
  'jabuti piranga nº 2',
  'mandacaru em flor 33',
  'rio Paraíba do Sul, 4',
]

/** Password of a user. */
export function passwordOf(id: number): string {
  return passwords[id % passwords.length]!
}

/** Organizations; number 9999 is missing. */
export const organizationCount = 207

/** Security questions there. */
export const questions = [
  'Qual é o nome da sua mãe?',
  'Onde você nasceu?',
  'Qual é a sua cor preferida?',
  'ONDE VOCE NASCEU?',
]

/** A question of the app's own list. */
export const ownQuestion = 'Qual a cor do seu primeiro barco?'

function keyOf(text: string): string {
  return createHash('md5')
    .update(text)
    .digest('hex')
    .replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

/** Activation key of an organization. */
export const organizationKey = (id: number) => keyOf(`organization ${id}`)

/** Provider key of a user; `further` is a second one. */
export const providerKey = (id: number, further = false) => keyOf(`${further ? 'further' : 'provider'} ${id}`)

/** The last answer of a user to a question, by their ids; users with odd ids have answered questions 1 and 3. */
export const answerOf = (id: number, question: number) => `Resposta ${question} de ${id}`

/** The username of a user without an oddity: a telephone number. */
export function usernameOf(id: number): string {
  const digits = String(900_000_000 + id)
  return `(11)${digits.slice(0, 5)}-${digits.slice(5)}`
}

/** Which users have which oddity. */
export const odd = {
  /** The username of the user before in another spelling; of 1,000 users 10. */
  sameUsername: (id: number) => id % 100 === 7,
  /** The nickname that the active user after it has in capital letters. */
  sameNickname: (id: number) => id % 100 === 56,
  noRole: (id: number) => id % 1000 === 31,
  twoRoles: (id: number) => id % 1000 === 32,
  missingOrganization: (id: number) => id % 1000 === 41,
  /** The name `#1021`, and names with invisible and control characters. */
  refusedName: (id: number) => id % 1000 >= 21 && id % 1000 <= 23,
} as const

/** Whether a user needs a decision. */
export function isListed(id: number): boolean {
  return Object.values(odd).some(has => has(id))
}

const tables = `
  CREATE SCHEMA auth;
  CREATE TABLE auth.users (id serial PRIMARY KEY, username varchar(255) NOT NULL UNIQUE, nickname varchar(255) NOT NULL UNIQUE,
    password varchar(255) NOT NULL, dateofborn date, gender char(1), state char(2) NOT NULL, city varchar(255) NOT NULL,
    institutiontype char(1), institution varchar(255), securityquestion varchar(255), securityanswer varchar(255),
    termsofusage boolean NOT NULL, avatar varchar(100), active int NOT NULL);
  CREATE TABLE auth.roles (id int PRIMARY KEY, name varchar(100) NOT NULL, active int NOT NULL);
  INSERT INTO auth.roles VALUES (0, 'ROLE_ADMIN', 1), (1, 'ROLE_INSTITUTION', 1), (2, 'ROLE_CLIENT', 1);
  CREATE TABLE auth.users_roles (users_id int NOT NULL, roles int NOT NULL);
  CREATE TABLE auth.educemaden_organizations (id int PRIMARY KEY, active varchar(20), name varchar(255) NOT NULL,
    creation_date varchar(50), inep_code varchar(100), phone varchar(100) NOT NULL, type varchar(100), website varchar(255),
    login varchar(50), address varchar(255), responsible varchar(50), activationkey uuid NOT NULL UNIQUE);
  CREATE TABLE auth.users_educemaden_organizations (id serial PRIMARY KEY, users_id int NOT NULL,
    educemaden_organizations_id int NOT NULL, activationkey uuid NOT NULL UNIQUE);
  CREATE TABLE auth.users_provider_activationkey (id serial PRIMARY KEY, users_id int NOT NULL,
    activationkey uuid NOT NULL UNIQUE);
  CREATE TABLE auth.forgotpassword_questions (id serial PRIMARY KEY, question varchar(255) NOT NULL, active int NOT NULL);
  CREATE TABLE auth.forgotpassword_questions_users_answers (id serial PRIMARY KEY,
    forgotpassword_questions_id int NOT NULL, users_id int NOT NULL, answer varchar(255) NOT NULL);
  CREATE TABLE auth.forgotpassword_keys (id serial PRIMARY KEY, username varchar(255) NOT NULL, key varchar(4) NOT NULL,
    created_at timestamp NOT NULL)`

const key = (text: string) => `md5(${text})::uuid`

const organizations = `INSERT INTO auth.educemaden_organizations
  SELECT o, (ARRAY['True', 'True', 'False', NULL, 't'])[1 + o % 5], 'Escola ' || CASE WHEN o > 200 THEN o - 200 ELSE o END,
    (ARRAY['2019-03-0' || 1 + o % 9 || ' 10:00:00', '0' || 1 + o % 9 || '/05/2020', 'NULL', NULL])[1 + o % 4],
    CASE WHEN o % 3 > 0 THEN (35000000 + o)::text END, '(12) 3' || o, CASE WHEN o % 2 = 0 THEN 'E' END,
    CASE WHEN o % 4 = 0 THEN 'https://escola' || o || '.example' END, 'escola' || o,
    CASE WHEN o % 5 = 0 THEN E'Rua A, 1\\nCentro' END, NULL, ${key(`'organization ' || o`)}
  FROM generate_series(1, ${organizationCount}) o`

/** Users 2 to n; the first one is its administrator. */
const users = `INSERT INTO auth.users (id, username, nickname, password, dateofborn, gender, state, city, institutiontype,
    institution, securityquestion, securityanswer, termsofusage, avatar, active)
  SELECT i,
    CASE WHEN i % 100 = 7 THEN '11' || 900000000 + i - 1 WHEN i % 1000 = 21 THEN '#' || i
      WHEN i % 1000 = 13 THEN ' Maria ' || i || '  ' WHEN i % 1000 = 14 THEN 'pessoa' || i || '@example.org'
      ELSE '(11)' || left(digits, 5) || '-' || right(digits, 4) END,
    CASE WHEN i % 100 = 57 THEN 'PESSOA ' || i - 1 WHEN i % 1000 = 22 THEN E'Pes\\u200Bsoa ' || i
      WHEN i % 1000 = 23 THEN E'Pessoa\\t' || i ELSE 'Pessoa ' || i END,
    ($2::text[])[1 + i % array_length($2::text[], 1)],
    CASE WHEN i % 3 > 0 THEN DATE '1970-01-01' + i % 15000 END, (ARRAY['M', 'F', 'N', ' ', NULL])[1 + i % 5], 'SP',
    CASE WHEN i % 11 = 0 THEN ' São José ' ELSE 'Campinas' END, (ARRAY['E', 'D', 'X', ' ', NULL])[1 + i % 5],
    (ARRAY['Escola ' || 1 + i % 207, 'X', NULL])[1 + i % 3],
    CASE WHEN i % 4 > 0 THEN '${ownQuestion}' END, CASE WHEN i % 6 > 0 THEN 'Azul ' || i END,
    i % 97 > 0, CASE WHEN i % 10 = 0 THEN 'avatar' || i END, CASE WHEN i % 4 > 0 THEN 1 ELSE 0 END
  FROM generate_series(2, $1::int) i, LATERAL (SELECT (900000000 + i)::text AS digits) d`

/** ROLE_INSTITUTION: each 20th user. */
const isProvider = 'i % 20 = 2'

const rest = [
  `INSERT INTO auth.users_roles SELECT i, CASE WHEN i = 1 OR i % 5000 = 9 THEN 0 WHEN ${isProvider} THEN 1 ELSE 2 END
    FROM generate_series(1, $1::int) i WHERE i % 1000 <> 31`,
  `INSERT INTO auth.users_roles SELECT i, CASE WHEN i % 1000 = 32 THEN 1 ELSE 2 END
    FROM generate_series(1, $1::int) i WHERE i % 1000 IN (32, 33)`,
  // Of five active users one was activated without a membership.
  `INSERT INTO auth.users_educemaden_organizations (users_id, educemaden_organizations_id, activationkey)
    SELECT i, CASE WHEN i % 1000 = 41 THEN 9999 ELSE 1 + i % ${organizationCount} END,
      CASE WHEN i <= ${organizationCount} AND ${isProvider} THEN ${key(`'organization ' || 1 + i % ${organizationCount}`)}
        WHEN i % 20 = 3 THEN ${key(`'provider ' || i - 1`)} ELSE ${key(`'made up ' || i`)} END
    FROM generate_series(2, $1::int) i WHERE i % 4 > 0 AND i % 5 > 0 AND i % 1000 <> 31`,
  `INSERT INTO auth.users_provider_activationkey (users_id, activationkey)
    SELECT i, ${key(`word || i`)} FROM generate_series(2, $1::int) i, unnest(ARRAY['further ', 'provider ']) word
    WHERE ${isProvider} AND i % 4 > 0 AND i % 5 > 0 AND (word = 'provider ' OR i % 400 = 2) ORDER BY i, word`,
  `INSERT INTO auth.forgotpassword_questions_users_answers (forgotpassword_questions_id, users_id, answer)
    SELECT question, i, CASE WHEN time = 1 THEN 'Antes' ELSE 'Resposta ' || question || ' de ' || i END
    FROM generate_series(3, $1::int, 2) i, unnest(ARRAY[1, 3]) question, generate_series(1, 2) time
    WHERE time = 2 OR i % 10 = 1 ORDER BY i, question, time`,
]

const foreignKeys = `
  ALTER TABLE auth.users_roles ADD FOREIGN KEY (users_id) REFERENCES auth.users;
  ALTER TABLE auth.users_educemaden_organizations ADD FOREIGN KEY (users_id) REFERENCES auth.users;
  ALTER TABLE auth.users_provider_activationkey ADD FOREIGN KEY (users_id) REFERENCES auth.users;
  ALTER TABLE auth.forgotpassword_questions_users_answers ADD FOREIGN KEY (users_id) REFERENCES auth.users,
    ADD FOREIGN KEY (forgotpassword_questions_id) REFERENCES auth.forgotpassword_questions;
  SELECT setval('auth.users_id_seq', max(id)) FROM auth.users`

/** Makes the schema with users 1 to `count` in an empty database. `cost` is that of the hashes. */
export async function makePredecessor(url: string, count: number, cost = 4): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    await client.query(tables)
    await client.query(organizations)
    for (const [index, question] of questions.entries())
      await client.query('INSERT INTO auth.forgotpassword_questions (question, active) VALUES ($1, $2)', [
        question,
        index === 2 ? 0 : 1,
      ])
    const hashes = await Promise.all(
      passwords.map(async each => (await bcrypt.hash(each, cost)).replace('$2b$', '$2a$')),
    )
    await client.query(
      `INSERT INTO auth.users (username, nickname, password, state, city, termsofusage, active)
       VALUES ('admin', 'Administrador', $1, 'SP', 'São José', true, 1)`,
      [hashes[1]],
    )
    await client.query(users, [count, hashes])
    for (const text of rest) await client.query(text, [count])
    await client.query(foreignKeys)
    await client.query('ANALYZE')
  } finally {
    await client.end()
  }
}
