/** A change and its event in the audit log: both or neither. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { type RequestOptions, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const service = serviceForFile()

/** What packages write to the console: the output of a service is JSON only. */
const written: unknown[] = []
console.warn = (...parts) => void written.push(...parts)

/** The steps that fail while they are in the table `broken`: writing an event, or the commit of a change. */
const parts = ['event', 'commit'] as const

const sql = async (text: string) => (await service.registry.database.sequelize.query(text))[0]

test.serial.before(() =>
  sql(`
    CREATE TABLE broken (part text);
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
      BEGIN IF EXISTS (SELECT FROM broken WHERE part = TG_ARGV[0]) THEN RAISE 'broken'; END IF; RETURN NEW; END $$;
    CREATE TRIGGER fail BEFORE INSERT ON audit_staged FOR EACH ROW EXECUTE FUNCTION fail('event');
    CREATE CONSTRAINT TRIGGER fail AFTER INSERT OR UPDATE ON users DEFERRABLE INITIALLY DEFERRED
      FOR EACH ROW EXECUTE FUNCTION fail('commit');
    CREATE CONSTRAINT TRIGGER fail AFTER INSERT OR UPDATE ON answers DEFERRABLE INITIALLY DEFERRED
      FOR EACH ROW EXECUTE FUNCTION fail('commit')`),
)

/** A change: the request that makes it, and a query for its effect. */
interface Change {
  request: [path: string, options: RequestOptions]
  look(): Promise<unknown>
}

const user = ({ token }: SignedUp) => service.registry.users.byId(idOf(token))
const changes: Record<string, () => Promise<Change>> = {
  'a sign-up': async () => {
    const names = { username: randomUUID(), nickname: randomUUID() }
    const body = { ...names, password: 'tatu-canastra 12', state: 'SP', city: 'Bauru', termsofusage: true }
    return {
      request: ['/users/signup', { body: { ...body, roles: ['ROLE_CLIENT'] } }],
      look: () => service.registry.users.byUsername(names.username),
    }
  },
  'an activation': async () => {
    const { activationkey } = await service.organization()
    const signedUp = await service.signUp('ROLE_INSTITUTION')
    const query = { username: signedUp.username, activationkey }
    return { request: ['/users/activate', { token: signedUp.token, query }], look: () => user(signedUp) }
  },
  'an activation by a mailed key': async () => {
    const { id } = await service.organization()
    const signedUp = await service.signUp('ROLE_INSTITUTION')
    const query = { username: signedUp.username, activationkey: randomUUID() }
    await service.registry.mailedKeys.replace(idOf(signedUp.token), 'activation', query.activationkey, id)
    return { request: ['/users/activate', { token: signedUp.token, query }], look: () => user(signedUp) }
  },
  'a saved answer': async () => {
    const { token } = await service.signUp('ROLE_CLIENT')
    const body = { forgotpasswordquestionsid: 1, answer: 'azul' }
    return {
      request: ['/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body }],
      look: () => service.registry.questions.answers(idOf(token)),
    }
  },
  'a new password': async () => {
    const signedUp = await service.signUp('ROLE_CLIENT')
    const query = { newPassword: 'tatu-canastra 12' }
    return {
      request: ['/forgotpasswords/passwordupdatebyusername', { token: signedUp.token, query }],
      look: () => user(signedUp),
    }
  },
}
for (const [name, arrange] of Object.entries(changes)) {
  test.serial(`${name} and its event are committed together or not at all`, async t => {
    const { request, look } = await arrange()
    const [path, options] = request
    const send = () => service.request('POST', path, options)
    const state = async () => ({
      seen: await look(),
      events: (await service.registry.audit.list({ limit: 999 })).length,
    })
    const before = await state()
    for (const part of parts) {
      await sql(`INSERT INTO broken VALUES ('${part}')`)
      t.not((await send()).status, 200)
      await sql('DELETE FROM broken')
      t.deepEqual(await state(), before, part)
      t.deepEqual(written, [], part)
    }
    const { status, text } = await send()
    t.is(status, 200, text)
    const { seen, events } = await state()
    t.notDeepEqual(seen, before.seen)
    t.is(events, before.events + 1)
  })
}
