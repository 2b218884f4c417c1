// The prompt for a line of text or a secret: while the input is invalid, it reports that below the line.
import {
  createPrompt,
  isBackspaceKey,
  isEnterKey,
  isTabKey,
  makeTheme,
  type Status,
  useEffect,
  useKeypress,
  usePrefix,
  useState,
} from '@inquirer/core'
import { inTerminalLanguage } from './language.js'

/** Milliseconds without a key after which what is typed is checked: a check may ask a server. */
const pause = 200

const hideCursor = '\x1b[?25l'

/** What is wrong with a text, as a sentence; undefined when nothing is. */
export type Check = (text: string) => string | undefined | Promise<string | undefined>

interface Question {
  readonly message: string
  /** Enter is refused while this finds a problem. */
  readonly check: Check
  /** What is shown while the user types, if that differs. */
  readonly hint?: Check
  /** Taken on Enter, put into the line by Tab, dropped by Backspace. */
  readonly fallback?: string
  /** Hides the typed text, including its length. */
  readonly secret?: boolean
}

/** Asks for a line until it is right. Rejects with an `ExitPromptError` at Ctrl-C. */
export const askLine = createPrompt<string, Question>((question, done) => {
  const { message, check, hint = check, secret = false } = question
  const theme = makeTheme()
  const [status, setStatus] = useState<Status>('idle')
  const [fallback, setFallback] = useState(question.fallback ?? '')
  // Undefined until the first key: an empty line is no problem before.
  const [typed, setTyped] = useState<string | undefined>(undefined)
  const [problem, setProblem] = useState<string | undefined>(undefined)
  const prefix = usePrefix({ status, theme })
  const answer = typed || fallback

  useEffect(() => {
    if (typed === undefined) return
    let newest = true
    const timer = setTimeout(async () => {
      const found = await hint(answer)
      if (newest) setProblem(found)
    }, pause)
    return () => {
      newest = false
      clearTimeout(timer)
    }
  }, [typed, fallback])

  useKeypress(async (key, line) => {
    if (status !== 'idle') return
    if (isEnterKey(key)) {
      setStatus('loading')
      const found = await check(answer)
      if (found === undefined) {
        setTyped(answer)
        setStatus('done')
        done(answer)
      } else {
        // Enter emptied the line.
        line.write(typed ?? '')
        setProblem(found)
        setStatus('idle')
      }
    } else if (fallback !== '' && !typed && isBackspaceKey(key)) {
      setFallback('')
      setTyped('')
    } else if (!typed && isTabKey(key)) {
      line.clearLine(0)
      line.write(fallback)
      setFallback('')
      setTyped(fallback)
    } else {
      setTyped(line.line)
    }
  })

  const offered = fallback !== '' && !typed ? [theme.style.defaultAnswer(fallback)] : []
  const shown = status === 'done' ? theme.style.answer(typed ?? '') : (typed ?? '')
  const text = secret ? hideCursor : shown
  return [
    [prefix, theme.style.message(inTerminalLanguage(message), status), ...offered, text].join(' '),
    problem === undefined || status === 'done' ? '' : theme.style.error(inTerminalLanguage(problem)),
  ]
})
