/** The audit log records every operation: this table has each action with its operation, and there are no others. */
import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import test from 'ava'
import { TOTP } from 'otpauth'
import { ImportKind } from '../../proto/gen/auth/v1/administration_pb.js'
import { Scope } from '../../proto/gen/auth/v1/scopes_pb.js'
import { auditActions, changedBy } from '../../server/policy/audit-actions.js'
import { openAdministration, openSignedIn } from '../_helpers/administration.js'
import { done, newIdentity } from '../_helpers/backups.js'
import { runCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { openMailbox } from '../_helpers/mailbox.js'
import { password, startTestService } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { idOf } from '../_helpers/tokens.js'

/** How many events of an action a registry has. */
async function count(url: string, action: string): Promise<number> {
  const text = `SELECT count(*) FROM (
      SELECT action, outcome FROM audit_events UNION ALL SELECT action, outcome FROM audit_staged
    ) e
    WHERE action = '${action}' AND outcome = 'ok'`
  return Number((await ask(url, text))[0]!.count)
}

/** Columns that a service doesn't see in a record. */
const unseen = {
  users: `username_key,username_skeleton,nickname_key,nickname_skeleton,password_hash,password_updated_at,email, email_proved,
    suspended_before_deletion,activated_at,activated_by,token_generation,created_at,unactivated_seen_at,
    recovery_from,recovery_kept,desk,suspended_with_organization`,
  organizations: 'name_key,activation_key_digest,activation_key_sealed,may_issue_keys',
}

/** SQL condition: the part of a row that services see changes. */
function shownChanges(table: keyof typeof unseen): string {
  const [before, after] = ['OLD', 'NEW'].map(
    row => `to_jsonb(${row}) - '{${unseen[table].replace(/\s/g, '')}}'::text[]`,
  )
  return `(${before}) IS DISTINCT FROM (${after})`
}

/** Records changes that the feed reports, with the events of the same transactions. */
const recorder = `
  CREATE TABLE recorded_events AS SELECT 1::bigint AS tx, action, subject_id, object FROM audit_staged WHERE false;
  CREATE TABLE recorded_changes (tx bigint, id int, what text);
  CREATE FUNCTION record_event() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO recorded_events VALUES (NEW.tx, NEW.action, NEW.subject_id, NEW.object); RETURN NULL; END';
  CREATE TRIGGER record_event AFTER INSERT ON audit_staged FOR EACH ROW EXECUTE FUNCTION record_event();
  CREATE FUNCTION record_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      INSERT INTO recorded_changes VALUES (pg_current_xact_id()::text::bigint,
        (to_jsonb(coalesce(NEW, OLD)) ->> 'id')::int, TG_ARGV[0]);
      RETURN NULL;
    END $$;
  CREATE TRIGGER record_tokens AFTER UPDATE ON users FOR EACH ROW
    WHEN (OLD.token_generation <> NEW.token_generation) EXECUTE FUNCTION record_change('tokens');
  CREATE TRIGGER record_erasure AFTER DELETE ON users FOR EACH ROW EXECUTE FUNCTION record_change('tokens');
  CREATE TRIGGER record_end AFTER INSERT OR DELETE ON users FOR EACH ROW EXECUTE FUNCTION record_change('record');
  CREATE TRIGGER record_record AFTER UPDATE ON users FOR EACH ROW
    WHEN (${shownChanges('users')}) EXECUTE FUNCTION record_change('record');
  CREATE TRIGGER record_organization AFTER UPDATE ON organizations FOR EACH ROW
    WHEN (${shownChanges('organizations')}) EXECUTE FUNCTION record_change('organization');
  CREATE TRIGGER record_key AFTER DELETE ON signing_keys FOR EACH ROW EXECUTE FUNCTION record_change('key')
`

test('every operation leaves an event of its action, marked with what it changes, and there are no other actions', async t => {
  const mailbox = await openMailbox(t)
  const service = await startTestService(t, {
    ...{ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url, AUTH_ISSUER: 'http://localhost' },
  })
  const api = await openSignedIn(t, service)
  const url = service.env.DATABASE_URL!
  const must = async (path: string, more: object) => {
    const { status, text } = await service.request('POST', path, more)
    if (status !== 200) throw new Error(`${path}: ${text}`)
    return text
  }
  const keyTo = async (email: string) =>
    /: ([2-9A-HJ-NP-Z]{8})$/m.exec((await mailbox.nextEmail(email)).text ?? '')?.[1] ?? ''

  const user = `${randomUUID()}`
  const [email, nextEmail] = [`${user}@example.org`, `next.${user}@example.org`]
  const tokens: string[] = []
  const answers = [1, 2].map(id => ({ forgotpasswordquestionsid: id, answer: 'azul' }))
  const partner = await service.organization()
  const [provider, waiting] = [await service.signUp('ROLE_INSTITUTION'), await service.signUp('ROLE_INSTITUTION')]
  const name = 'Defesa Civil do Brejo'
  const other = { username: 'ana', role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password }
  const folder = await temporaryFolder(t)
  const { recipient, identity } = await newIdentity(folder)
  const file = join(folder, 'registry.age')
  const there = { DATABASE_URL: await freshDatabase(t), AUTH_MASTER_KEY: Buffer.alloc(32, 9).toString('base64') }
  const empty = await freshDatabase(t)

  const startImport = (kind: ImportKind, source: number) =>
    api.startImport({ kind, sourceDigest: String(source).padStart(64, '0') })

  /** By action, in this order; an operation on another database returns it. */
  const acts: Record<string, () => Promise<unknown>> = {
    'user.sign-up': async () => tokens.push((await service.signUp('ROLE_CLIENT', { username: user, email })).token),
    'session.login': async () => tokens.push(await service.login(user)),
    async 'user.save-answer'() {
      const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
      for (const body of answers) {
        await must(path, { token: tokens[0], body })
        await mailbox.nextEmail(email)
      }
    },
    async 'session.login-by-answers'() {
      await must('/forgotpasswords/loginbyusernameandanswers', { query: { username: user }, body: answers })
      await mailbox.nextEmail(email)
    },
    async 'recovery.send-key'() {
      await must('/forgotpasswords/sendkeybyemail', { query: { username: user, email } })
      tokens.push(await keyTo(email))
    },
    async 'recovery.send-usernames'() {
      await ask(url, `UPDATE users SET email_proved = true WHERE email = '${email}'`)
      // The quota is that of keys.
      await ask(url, 'DELETE FROM email_quotas')
      await must('/forgotpasswords/sendkeybyemail', { query: { email } })
      await mailbox.nextEmail(email)
      await ask(url, `UPDATE users SET email_proved = false WHERE email = '${email}'`)
    },
    async 'session.login-by-key'() {
      // The first key would end the tokens, with an event of its own.
      await ask(url, `UPDATE users SET email_proved = true WHERE email = '${email}'`)
      await must('/forgotpasswords/loginbyusernameandkey', { query: { username: user, key: tokens.pop()! } })
    },
    'user.ask-email': () => must('/users/setemail', { token: tokens[0], body: { email: nextEmail, password } }),
    'user.change-email': async () =>
      must('/users/confirmemail', { token: tokens[0], body: { code: await keyTo(nextEmail) } }),
    'user.change-password': () =>
      must('/forgotpasswords/passwordupdatebyusername', { token: tokens[0], query: { newPassword: `${password}!` } }),
    'user.revoke-own-tokens': async () =>
      must('/users/revokemytokens', { token: await service.login(user, `${password}!`) }),
    'user.edit-own': async () => {
      const token = await service.login(user, `${password}!`)
      const { status, text } = await service.request('PATCH', '/users/me', {
        token,
        body: { record: { city: 'Assis' } },
      })
      if (status !== 200) throw new Error(text)
    },
    'user.set-own-username': () =>
      must('/users/me/username', { token: provider.token, body: { username: provider.nickname, password } }),
    'user.activate': () =>
      must('/users/activate', {
        token: provider.token,
        query: { username: provider.nickname, activationkey: partner.activationkey },
      }),
    async 'user.send-activation-key'() {
      await api.setOrganization({ user: waiting.username, organization: `#${partner.id}` })
      const token = await service.login(waiting.username)
      const query = { username: waiting.username, emailpartner: partner.email }
      await must('/1.0.0/users/sendadminkeybyemailpartner', { token, query })
      await mailbox.nextEmail(partner.email)
    },

    async 'user.export-own'() {
      const token = await service.login(user, `${password}!`)
      const { status, text } = await service.request('GET', '/users/me/export', { token })
      if (status !== 200) throw new Error(text)
    },
    async 'user.delete-own-answers'() {
      const { token } = await service.signUp('ROLE_CLIENT', { securityquestion: 'Cor?', securityanswer: 'azul' })
      await must('/users/me/answers/delete', { token, body: { password } })
    },
    async 'user.delete-own'() {
      const { token } = await service.signUp('ROLE_CLIENT')
      await must('/users/me/delete', { token, body: { password } })
    },

    async 'session.authorize'() {
      const uri = 'https://tool.example.org/'
      const { key } = await api.createService({ name: 'tool', redirectUris: [uri] })
      const { token } = await service.institution(partner)
      const authorization = { clientId: 'tool', redirectUri: uri, responseType: 'code', scope: 'openid' }
      const { location } = JSON.parse(await must('/auth.v1.OpenId/Authorize', { token, body: { authorization } }))
      const grant = {
        grant_type: 'authorization_code',
        code: new URL(location).searchParams.get('code'),
        redirect_uri: uri,
      }
      const body = { client_id: 'tool', client_secret: key, ...grant }
      tokens.push(JSON.parse(await must('/oauth/token', { body })).access_token)
      tokens.push(key)
    },
    async 'session.end'() {
      const [client_secret, token] = [tokens.pop(), tokens.pop()]
      await must('/oauth/revoke', { body: { client_id: 'tool', client_secret, token } })
    },
    'session.admin-login': () => openAdministration(t, service).signIn({ username: 'admin', password }),
    'user.add': () => api.createUser({ form: other, active: true, confirm: 'ana' }),
    async 'user.enroll-totp'() {
      const { token } = await openAdministration(t, service).signIn({ username: 'ana', password })
      const ana = openAdministration(t, service, token)
      const { secret } = await ana.enrollTotp({})
      await ana.confirmTotp({ code: new TOTP({ secret }).generate() })
    },
    'user.remove-totp': () => api.removeTotp({ user: 'ana', confirm: 'ana' }),
    'user.edit': () => api.updateUser({ user, form: { city: 'Marília' }, updateMask: { paths: ['city'] } }),
    'user.set-email': () => api.updateUser({ user, form: { email }, updateMask: { paths: ['email'] } }),
    'user.send-key': () => api.sendRecoveryKey({ user }),
    'user.suspend': () => api.suspendUser({ user }),
    'user.resume': () => api.resumeUser({ user }),
    async 'user.unlock'() {
      // From an unknown address: these failures count for all unknown addresses.
      const headers = { 'x-forwarded-for': '198.51.100.7' }
      await service.request('POST', '/users/login', { query: { username: user, password: 'errada-errada' }, headers })
      await api.unlockUser({ user })
    },
    async 'user.clear-answers'() {
      const answers = { securityquestion: '1', securityanswer: 'Rex' }
      const { token } = await service.signUp('ROLE_CLIENT', answers)
      await api.clearAnswers({ user: `#${idOf(token)}` })
    },
    'user.issue-key': () => api.issueKey({ user }),
    'user.grant-desk': () => api.grantDesk({ user: provider.nickname }),
    'user.revoke-desk': () => api.revokeDesk({ user: provider.nickname }),
    'user.set-password': () => api.setPassword({ user, password }),
    'user.set-role': () => api.setRole({ user, role: 'ROLE_INSTITUTION' }),
    'user.set-organization': () => api.setOrganization({ user, organization: `#${partner.id}` }),
    'user.rotate-provider-key': () => must('/users/me/providerkey', { token: provider.token }),
    async 'user.deactivate'() {
      const { username, token } = await service.signUp('ROLE_CLIENT')
      const activationkey = (await service.request('GET', '/users/me', { token: provider.token })).json
        .providerActivationKey.activationkey
      await must('/users/activate', { token, query: { username, activationkey } })
      await must('/users/me/members/deactivate', { token: provider.token, query: { username } })
    },
    'user.revoke-tokens': () => api.revokeTokens({ user }),
    'user.show-key': () => api.getUser({ user: provider.nickname }),
    'user.export': () => api.exportUser({ user }),
    'user.delete': () => api.deleteUser({ user }),
    'user.undelete': () => api.undeleteUser({ user }),
    'user.erase': () => api.eraseUser({ user, confirm: user }),

    'organization.add': () => api.createOrganization({ form: { name } }),
    'organization.edit': () =>
      api.updateOrganization({ organization: name, form: { phone: '1' }, updateMask: { paths: ['phone'] } }),
    'organization.show-key': () => api.getOrganization({ organization: name }),
    'organization.rotate-key': () => api.rotateOrganizationKey({ organization: name }),
    'organization.deactivate': () => api.deactivateOrganization({ organization: name }),
    'organization.activate': () => api.activateOrganization({ organization: name }),
    'import.start': () => startImport(ImportKind.ORGANIZATIONS, 1),
    async 'organization.import'() {
      const { id } = (await startImport(ImportKind.ORGANIZATIONS, 1)).import!
      await api.importBatch({ id, organizations: [{ id: partner.id, form: { phone: '2' } }] })
    },
    async 'user.import'() {
      const { id } = (await startImport(ImportKind.USERS, 2)).import!
      const form = { username: randomUUID(), role: 'ROLE_CLIENT', state: 'SP', city: 'Bauru' }
      await api.importBatch({ id, users: [{ form }] })
    },
    'import.abort': async () => api.abortImport({ id: (await startImport(ImportKind.USERS, 3)).import!.id }),
    'user.export-secrets': () => api.getUserSecrets({ ids: [1] }),
    'organization.export-secrets': () => api.getOrganizationSecrets({ ids: [partner.id] }),
    'organization.delete': () => api.deleteOrganization({ organization: name, confirm: name }),

    'question.add': () => api.createQuestion({ question: 'Cor preferida?' }),
    'question.edit': () => api.updateQuestion({ question: 'Cor preferida?', text: 'Cor?' }),
    'question.order': () => api.orderQuestions({ questions: ['Cor?'] }),
    'question.retire': () => api.retireQuestion({ question: 'Cor?' }),
    'question.restore': () => api.offerQuestion({ question: 'Cor?' }),
    async 'question.link'() {
      await service.signUp('ROLE_CLIENT', { securityquestion: 'Qual cor?', securityanswer: 'azul' })
      await api.linkQuestion({ text: 'Qual cor?', question: 'Cor?' })
    },

    'service.add': () => api.createService({ name: 'alertas', scopes: [Scope.USERS_READ] }),
    'service.edit': () =>
      api.updateService({
        name: 'alertas',
        form: { scopes: [Scope.TOKENS_VERIFY] },
        updateMask: { paths: ['scopes'] },
      }),
    'service.add-key': () => api.createServiceKey({ name: 'alertas' }),
    async 'service.delete-key'() {
      const { services } = await api.listServices({})
      await api.deleteServiceKey({ name: 'alertas', id: services[0]!.keys[0]!.id })
    },
    'service.delete': () => api.deleteService({ name: 'alertas', confirm: 'alertas' }),

    'signing-key.rotate': async () => tokens.push((await api.rotateSigningKey({})).key!.kid),
    'signing-key.retire': () => api.retireSigningKey({ kid: tokens.at(-1)!, confirm: tokens.at(-1)! }),
    'registry.set-issuer': () => api.setIssuer({ issuer: 'http://other.test', confirm: 'http://other.test' }),

    'email.test': () => api.sendTestEmail({ email: 'test@example.org' }),
    async 'email.retry'() {
      const columns = '(kind, parameters, locale, next_attempt_at)'
      const [{ id }] = (await ask(
        url,
        `INSERT INTO emails ${columns} VALUES ('password-changed', '{}', 'en', NULL), ('password-changed', '{}', 'en', NULL) RETURNING id`,
      )) as [{ id: string }]
      await api.retryEmail({ id: BigInt(id) })
    },
    async 'email.discard'() {
      const { emails } = await api.listEmails({ failed: true })
      await api.discardEmail({ id: emails.at(-1)!.id })
    },

    async 'registry.backup'() {
      done(await runCli(service.env, ['backup', file, '--recipient', recipient]))
    },
    async 'registry.restore'() {
      done(await runCli(there, ['restore', file, '--identity', identity]))
      return there.DATABASE_URL
    },
    async 'master-key.rotate'() {
      const key = Buffer.alloc(32, 8).toString('base64')
      done(await runCli(there, ['master-key', 'rotate', '--new-key-file', '-'], key))
      return there.DATABASE_URL
    },
    async 'data-keys.add'() {
      await startTestService(t, { DATABASE_URL: empty })
      return empty
    },
    'signing-key.add': async () => empty,
  }
  t.deepEqual(Object.keys(acts).sort(), [...auditActions].sort())
  await ask(url, recorder)
  for (const [action, act] of Object.entries(acts)) {
    const before = await count(url, action)
    const elsewhere = await act()
    const isElsewhere = typeof elsewhere === 'string' && elsewhere.startsWith('postgres')
    t.true((await count(isElsewhere ? elsewhere : url, action)) > (isElsewhere ? 0 : before), action)
  }

  // Each change that the feed reports has a marked event in its transaction.
  const changes = await ask(
    url,
    `SELECT c.what, array_agg(DISTINCT e.action) AS actions FROM recorded_changes c
    JOIN recorded_events e ON e.tx = c.tx AND (e.subject_id = c.id OR e.object LIKE '%:' || c.id OR c.id IS NULL)
    GROUP BY c.tx, c.id, c.what`,
  )
  const [{ unmarked }] = (await ask(
    url,
    'SELECT count(*)::int AS unmarked FROM recorded_changes c WHERE NOT EXISTS (SELECT FROM recorded_events e WHERE e.tx = c.tx)',
  )) as [{ unmarked: number }]
  t.is(unmarked, 0)
  const marks: Record<string, readonly string[]> = changedBy
  const seen = new Set<string>()
  for (const { what, actions } of changes as { what: string; actions: string[] }[]) {
    const marked = actions.filter(action => marks[action]?.includes(what))
    t.true(marked.length > 0, `${what}: ${actions}`)
    for (const action of marked) seen.add(`${action} ${what}`)
  }
  // And there is no mark without a change.
  const all = Object.entries(marks).flatMap(([action, whats]) => whats.map(what => `${action} ${what}`))
  t.deepEqual(all.filter(mark => !seen.has(mark)).sort(), [])
})
