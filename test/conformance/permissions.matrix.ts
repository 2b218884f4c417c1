/**
 * Who may call what: every RPC with every kind of credential, written by hand from the decisions on permissions (sections
 * 2, 6, 7 and 14). permissions.test.ts holds the service and the access policy to it.
 *
 * A mark for each cell, a group of marks for each kind of credential:
 *
 *     +  let through: any answer or refusal that isn't about permission
 *     -  ACCESS_DENIED
 *     !  INVALID_TOKEN
 *     ^  SIGN_IN_AGAIN
 *     .  no such cell: the RPC applies to no user, or only to its caller
 */

/** Services by their only scope. */
const services = [
  'users.read',
  'tokens.verify',
  'tokens.watch',
  'clients.forward',
  'administration.read',
  'organizations.write',
  'users.watch',
] as const

/** The kinds of credential at the public services, each with its columns. */
export const publicColumns = {
  none: ['none'],
  // A ROLE_INSTITUTION that has an organization, and a ROLE_ADMIN: they have most rights once they are active.
  inactive: ['inactive, own', 'inactive, member', 'inactive ROLE_ADMIN, other'],
  client: ['client, own', 'client, other'],
  institution: ['institution, own', 'institution, member', 'institution, other organization'],
  services,
  // Sessions of a ROLE_ADMIN by password, by mailed key, by answers; with one-time codes enrolled; suspended meanwhile.
  password: ['password, own', 'password, other', 'password, another ROLE_ADMIN'],
  key: ['key, own', 'key, other'],
  answers: ['answers, own', 'answers, other'],
  enrolled: ['enrolled, own', 'enrolled, other'],
  suspended: ['suspended, own', 'suspended, other'],
  // A session of Administration, at the public services.
  administration: ['administration'],
  // A ROLE_CLIENT who holds desk: by password, by answers, with one-time codes enrolled; and as another's target.
  desk: ['desk, own', 'desk by answers, own', 'desk enrolled, own', 'password, desk'],
} as const

/** `auth.v1.Users`, `auth.v1.ForgotPasswords`, `auth.v1.OpenId` and `auth.v1.Changes`. */
export const publicMatrix = `
                       none inactive client institution services password key answers enrolled suspended administration desk
signUp                    + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
activate                  - +--      +-     +--         -------  +++      +-  --      --       !!        !     +--+
login                     + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
getMe                     - +..      +.     +..         -------  +..      +.  +.      +.       !.        !     +++.
updateMe                  - +..      +.     +..         -------  +..      +.  -.      -.       !.        !     +--.
refresh                   - +..      +.     +..         -------  +..      +.  -.      +.       !.        !     +-+.
createRefreshToken        - +..      +.     +..         -------  +..      +.  -.      -.       !.        !     +--.
getUser                   - +--      +-     ++-         +------  +++      +-  +-      +-       !!        !     ++++
batchGetUsers             - -..      -.     -..         +------  -..      -.  -.      -.       !.        !     ---.
listUsers                 - -..      -.     -..         +------  -..      -.  -.      -.       !.        !     ---.
setEmail                  - +..      +.     +..         -------  +..      +.  -.      -.       !.        !     +--.
confirmEmail              - +..      +.     +..         -------  +..      +.  -.      -.       !.        !     +--.
setUsername               - +..      +.     +..         -------  +..      +.  -.      -.       !.        !     +--.
sendAdminKeyByEmailPartner - +--     --     +--         -------  +++      --  --      --       !!        !     ---+
rotateProviderKey         - +..      -.     +..         -------  -..      -.  -.      -.       !.        !     ---.
listMembers               - -..      -.     +..         -------  -..      -.  -.      -.       !.        !     ---.
existsByUsername          + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
existsByNickname          + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
verifyToken               + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
introspect                - -..      -.     -..         -+-----  -..      -.  -.      -.       !.        !     ---.
getServerMetadata         + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
getKeys                   + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
findAllForgotPasswordQuestions + +.. +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
loginByUsernameAndAnswers + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
loginByUsernameAndKey     + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
passwordUpdateByUsername  - +--      +-     +--         -------  ++-      +-  --      --       !!        !     +---
saveForgotPasswordQuestionsUsersAnswers - +-- +- +--     -------  ++-      +-  --      --       !!        !     +---
sendKeyByEmail            + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
deleteMe                  - +..      +.     +..         -------  +..      +.  -.      -.       !.        !     +--.
deleteMyAnswers           - +..      +.     +..         -------  +..      +.  -.      -.       !.        !     +--.
exportMe                  - +..      +.     +..         -------  +..      +.  -.      -.       !.        !     +--.
listMyEvents              - +..      +.     +..         -------  +..      +.  -.      -.       !.        !     +--.
deactivateMember          - ---      --     +++         -------  ---      --  --      --       !!        !     ----
issueMemberKey            - ---      --     +++         -------  ---      --  --      --       !!        !     ----
poll                      - -..      -.     -..         --+---+  -..      -.  -.      -.       !.        !     ---.
checkOrigin               + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
checkAuthorization        + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
authorize                 - +..      +.     +..         -------  +..      +.  -.      +.       !.        !     +-+.
exchangeToken             + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
revokeToken               + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
getUserInfo               + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
checkSignOut              + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
signOut                   - +..      +.     +..         -------  +..      +.  +.      +.       !.        !     +++.
getProviderMetadata       + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
getIdTokenKeys            + +..      +.     +..         +++++++  +..      +.  +.      +.       +.        +     +++.
revokeMyTokens            - +..      +.     +..         -------  +..      +.  -.      +.       !.        !     +-+.
`

/** The kinds of credential at Administration. Its own sessions have two columns: on an ordinary user, on a ROLE_ADMIN. */
export const administrationColumns = {
  none: ['none'],
  users: ['inactive', 'client', 'institution'],
  services,
  // Sessions of a ROLE_ADMIN at the public services.
  public: ['password', 'key', 'answers', 'enrolled', 'suspended'],
  // With one-time codes enrolled: a sign-in of the last 15 minutes with a code, an older one, a recent one without.
  recent: ['recent, user', 'recent, ROLE_ADMIN'],
  old: ['old, user', 'old, ROLE_ADMIN'],
  codeless: ['codeless, user', 'codeless, ROLE_ADMIN'],
  suspended: ['suspended session, user', 'suspended session, ROLE_ADMIN'],
  // A recent session of a holder of desk: on an ordinary user, on a ROLE_ADMIN, on another holder; and that of an administrator,
  // older than 15 minutes, on a holder.
  desk: ['desk, user', 'desk, ROLE_ADMIN', 'desk, desk', 'old, desk'],
} as const

/** `auth.v1.Administration`. */
export const administrationMatrix = `
                       none users services public recent old codeless suspended desk
signIn                    + +++   +++++++  +++++  +.     +.  +.       +.     +...
getSession                - !!!   ----++-  !!!!!  +.     +.  +.       !.     +...
enrollTotp                - !!!   -------  !!!!!  +.     ^.  ^.       !.     +...
confirmTotp               - !!!   -------  !!!!!  +.     ^.  ^.       !.     +...
removeTotp                - !!!   -------  !!!!!  ++     ^^  ^^       !!     ---^
listUsers                 - !!!   ----+--  !!!!!  +.     +.  +.       !.     +...
getUser                   - !!!   ----+--  !!!!!  ++     ++  ++       !!     +--+
createUser                - !!!   -------  !!!!!  ++     +^  +^       !!     ---.
updateUser                - !!!   -------  !!!!!  ++     +^  +^       !!     +--^
activateUser              - !!!   -------  !!!!!  ++     +^  +^       !!     +--^
suspendUser               - !!!   -------  !!!!!  ++     +^  +^       !!     +--^
resumeUser                - !!!   -------  !!!!!  ++     +^  +^       !!     +--^
suspendUsers              - !!!   -------  !!!!!  +.     +.  +.       !.        -...
resumeUsers               - !!!   -------  !!!!!  +.     +.  +.       !.        -...
unlockUser                - !!!   -------  !!!!!  ++     +^  +^       !!     +--^
clearAnswers              - !!!   -------  !!!!!  ++     +^  +^       !!     ---^
setPassword               - !!!   -------  !!!!!  ++     +^  +^       !!     ---^
setRole                   - !!!   -------  !!!!!  ++     +^  +^       !!     ---^
setOrganization           - !!!   -------  !!!!!  ++     ++  ++       !!     ---+
rotateProviderKey         - !!!   -------  !!!!!  ++     ++  ++       !!     ---+
revokeTokens              - !!!   -------  !!!!!  ++     ++  ++       !!     ---+
sendRecoveryKey           - !!!   -------  !!!!!  ++     +^  +^       !!     +--^
issueKey                  - !!!   -------  !!!!!  ++     ++  ++       !!        +--+
issueKeys                 - !!!   -------  !!!!!  +.     +.  +.       !.        +...
grantDesk                 - !!!   -------  !!!!!  ++     ^^  ^^       !!        ---^
revokeDesk                - !!!   -------  !!!!!  ++     ^^  ^^       !!        ---^
deleteUser                - !!!   -------  !!!!!  ++     +^  +^       !!     ---^
undeleteUser              - !!!   -------  !!!!!  ++     +^  +^       !!     ---^
eraseUser                 - !!!   -------  !!!!!  ++     ^^  ^^       !!     ---^
eraseUnactivatedUsers     - !!!   -------  !!!!!  +.     ^.  ^.       !.     -...
explainUser               - !!!   ----+--  !!!!!  ++     ++  ++       !!     +--+
listLockouts              - !!!   ----+--  !!!!!  +.     +.  +.       !.     +...
exportUser                - !!!   -------  !!!!!  ++     ++  ++       !!     ---+
listOrganizations         - !!!   ----++-  !!!!!  +.     +.  +.       !.     +...
getOrganization           - !!!   ----++-  !!!!!  +.     +.  +.       !.     +...
createOrganization        - !!!   -----+-  !!!!!  +.     +.  +.       !.     -...
updateOrganization        - !!!   -----+-  !!!!!  +.     +.  +.       !.     -...
activateOrganization      - !!!   -------  !!!!!  +.     +.  +.       !.     -...
deactivateOrganization    - !!!   -------  !!!!!  +.     +.  +.       !.     -...
rotateOrganizationKey     - !!!   -------  !!!!!  +.     +.  +.       !.     -...
deleteOrganization        - !!!   -------  !!!!!  +.     ^.  ^.       !.     -...
listQuestions             - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
getQuestion               - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
createQuestion            - !!!   -------  !!!!!  +.     +.  +.       !.     -...
updateQuestion            - !!!   -------  !!!!!  +.     +.  +.       !.     -...
offerQuestion             - !!!   -------  !!!!!  +.     +.  +.       !.     -...
retireQuestion            - !!!   -------  !!!!!  +.     +.  +.       !.     -...
orderQuestions            - !!!   -------  !!!!!  +.     +.  +.       !.     -...
listUnmatchedQuestions    - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
linkQuestion              - !!!   -------  !!!!!  +.     +.  +.       !.     -...
listServices              - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
getService                - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
createService             - !!!   -------  !!!!!  +.     ^.  ^.       !.     -...
updateService             - !!!   -------  !!!!!  +.     ^.  ^.       !.     -...
deleteService             - !!!   -------  !!!!!  +.     ^.  ^.       !.     -...
createServiceKey          - !!!   -------  !!!!!  +.     ^.  ^.       !.     -...
deleteServiceKey          - !!!   -------  !!!!!  +.     ^.  ^.       !.     -...
listSigningKeys           - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
getSigningKey             - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
rotateSigningKey          - !!!   -------  !!!!!  +.     ^.  ^.       !.     -...
retireSigningKey          - !!!   -------  !!!!!  +.     ^.  ^.       !.     -...
getIssuer                 - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
setIssuer                 - !!!   -------  !!!!!  +.     ^.  ^.       !.     -...
listEmails                - !!!   ----+--  !!!!!  +.     +.  +.       !.     +...
getEmail                  - !!!   ----+--  !!!!!  +.     +.  +.       !.     +...
retryEmail                - !!!   -------  !!!!!  +.     +.  +.       !.     -...
retryFailedEmails         - !!!   -------  !!!!!  +.     +.  +.       !.     -...
discardEmail              - !!!   -------  !!!!!  +.     +.  +.       !.     -...
sendTestEmail             - !!!   -------  !!!!!  +.     +.  +.       !.     -...
startImport               - !!!   -------  !!!!!  +.     ^.  ^.       !.     +...
importBatch               - !!!   -------  !!!!!  +.     +.  +.       !.     +...
finishImport              - !!!   -------  !!!!!  +.     +.  +.       !.     +...
abortImport               - !!!   -------  !!!!!  +.     +.  +.       !.     +...
getImport                 - !!!   ----+--  !!!!!  +.     +.  +.       !.     +...
listImports               - !!!   ----+--  !!!!!  +.     +.  +.       !.     +...
getUserSecrets            - !!!   -------  !!!!!  +.     ^.  ^.       !.     -...
getOrganizationSecrets    - !!!   -------  !!!!!  +.     ^.  ^.       !.     -...
listAuditEvents           - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
getAuditEvent             - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
verifyAuditLog            - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
getMigrations             - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
getConfiguration          - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
diagnose                  - !!!   ----+--  !!!!!  +.     +.  +.       !.     -...
`

/** What a mark means; that of no cell is left out. */
export type Mark = '+' | '-' | '!' | '^'

/** Marks by RPC and column. */
export type Matrix = ReadonlyMap<string, ReadonlyMap<string, Mark>>

/** Reads a table above. Throws an Error for a line that doesn't fit its columns. */
export function readMatrix(text: string, columns: Readonly<Record<string, readonly string[]>>): Matrix {
  const [head, ...lines] = text
    .trim()
    .split('\n')
    .map(line => line.trim().split(/ +/))
  if (String(head) !== String(Object.keys(columns))) throw new Error(`other columns: ${head}`)
  const rows = lines.map(([rpc, ...groups]) => {
    const all = Object.values(columns)
    const fits = groups.length === all.length && groups.every((marks, index) => marks.length === all[index]!.length)
    if (!fits || !/^[-+!^. ]+$/.test(groups.join(''))) throw new Error(`not a row: ${rpc} ${groups.join(' ')}`)
    const names = all.flat()
    const cells = [...groups.join('')].map((mark, index) => [names[index]!, mark] as const)
    return [rpc!, new Map(cells.filter(([, mark]) => mark !== '.') as [string, Mark][])] as const
  })
  if (new Set(rows.map(([rpc]) => rpc)).size !== rows.length) throw new Error('a row twice')
  return new Map(rows)
}
