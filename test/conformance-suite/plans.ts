/** The plans of the suite to pass, and how the browser of the suite goes through the pages of the registry. */

/** A plan of the suite, with the variants to run. */
export interface Plan {
  readonly name: string
  /** Part of the redirect URIs of its tests. */
  readonly alias: string
  readonly variant: Readonly<Record<string, string>>
}

export const plans: readonly Plan[] = [
  {
    name: 'oidcc-basic-certification-test-plan',
    alias: 'basic',
    variant: { server_metadata: 'discovery', client_registration: 'static_client' },
  },
  { name: 'oidcc-config-certification-test-plan', alias: 'config', variant: {} },
  {
    name: 'oidcc-rp-initiated-logout-certification-test-plan',
    alias: 'logout',
    variant: { response_type: 'code', client_registration: 'static_client' },
  },
]

/** Waits for a page with this element, and takes it for the screenshot that a module asks for: that ends as REVIEW. */
const see = (xpath: string, optional: '' | '-optional' = '') =>
  ['wait', 'xpath', xpath, 10, '\\S', `update-image-placeholder${optional}`] as const

const press = ['click', 'css', 'form button'] as const

/** What the suite needs to know for a plan: the service, a user of it, and its clients. */
export function configurationOf(
  { alias }: Plan,
  of: {
    readonly issuer: string
    /** URL of the suite. */
    readonly base: string
    readonly user: { readonly username: string; readonly password: string }
    readonly clients: readonly { readonly client_id: string; readonly client_secret: string }[]
  },
): object {
  const { issuer, base, user, clients } = of
  const [client, client2] = clients
  const authorize = `${issuer}/oauth/authorize*`
  const logout = `${issuer}/oauth/logout*`
  const returned = `${base}/test/a/${alias}`

  const signIn = (...before: ReturnType<typeof see>[]) => ({
    match: authorize,
    tasks: [
      {
        task: 'Sign in unless signed in',
        match: authorize,
        optional: true,
        commands: [
          ...before,
          ['text', 'name', 'username', user.username],
          ['text', 'name', 'password', user.password],
          press,
        ],
      },
      { task: 'Return', match: `${returned}/callback*`, commands: [['wait', 'id', 'submission_complete', 10]] },
    ],
  })
  const confirm = { task: 'Confirm if asked', match: logout, optional: true, commands: [[...press, 'optional']] }
  const signOut = {
    match: logout,
    tasks: [confirm, { task: 'Return', match: `${returned}/post_logout_redirect*` }],
  }
  const stay = (match: string, xpath: string, ...before: (typeof confirm)[]) => ({
    match,
    tasks: [...before, { task: 'See the page', match: `${issuer}/*`, commands: [see(xpath)] }],
  })

  const withoutForm = '//body[not(.//form)]'
  const againSignedIn = [signIn(see('//form[.//input[@name="password"]]', '-optional'))]
  const refused = [stay(authorize, withoutForm)]
  // An error, or the question whether to sign out.
  const notBack = [signIn(), stay(logout, '//body')]
  const signedOut = [signIn(), stay(logout, withoutForm, confirm)]
  const special = {
    'prompt-login': againSignedIn,
    'max-age-1': againSignedIn,
    'ensure-registered-redirect-uri': refused,
    'ensure-request-object-with-redirect-uri': refused,
    'rp-initiated-logout-bad-post-logout-redirect-uri': notBack,
    'rp-initiated-logout-query-added-to-post-logout-redirect-uri': notBack,
    'rp-initiated-logout-modified-id-token-hint': notBack,
    'rp-initiated-logout-bad-id-token-hint': notBack,
    'rp-initiated-logout-no-id-token-hint': notBack,
    'rp-initiated-logout-no-params': signedOut,
    'rp-initiated-logout-no-post-logout-redirect-uri': signedOut,
    'rp-initiated-logout-only-state': signedOut,
  }
  return {
    alias,
    server: { discoveryUrl: `${issuer}/.well-known/openid-configuration`, login_hint: user.username },
    client,
    client2,
    client_secret_post: client,
    browser: [signIn(), signOut],
    override: Object.fromEntries(Object.entries(special).map(([name, browser]) => [`oidcc-${name}`, { browser }])),
  }
}
