package exec

import (
	"crypto/rand"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
)

// codeBody is source text to run.
type codeBody struct {
	Code     string `json:"code" example:"console.log(1 + 2)"`
	Language string `json:"language" enum:"js ts python"`
	Folder   string `json:"folder,omitempty" doc:"working directory, absolute or below /workspace/home"`
	Timeout  *int64 `json:"timeout,omitempty" doc:"milliseconds after which the code is killed" min:"1" max:"604800000" example:"30000"`
}

// interpreters are shell scripts that exec the interpreter of a language. The interpreter reads the code from standard
// input, so the code is in no file and in no argument list, and the code itself sees an empty standard input. If the
// image has no interpreter, the script prints an error to stderr after the mark passed as $1.
var interpreters = map[string]string{
	"js": `command -v node >/dev/null && exec node -
command -v bun >/dev/null && exec bun run -
printf '%s%s' "$1" 'the image has no JavaScript runtime; create the box with an image that has node' >&2`,
	"ts": `if command -v node >/dev/null; then
	set -- "$1" $(node -p 'process.versions.node.replaceAll(".", " ")' 2>/dev/null)
	if [ "${2:-0}" -gt 23 ] || { [ "${2:-0}" -eq 23 ] && [ "${3:-0}" -ge 6 ]; } || { [ "${2:-0}" -eq 22 ] && [ "${3:-0}" -ge 18 ]; }; then
		exec node --disable-warning=ExperimentalWarning --input-type=commonjs-typescript -
	fi
fi
if command -v node >/dev/null && command -v esbuild >/dev/null; then
	js=$(esbuild --loader=ts --format=cjs --log-level=error) || exit
	printf '%s\n' "$js" | node -
	exit
fi
command -v deno >/dev/null && exec deno run --quiet --allow-all --ext=ts -
command -v bun >/dev/null && exec bun run -
printf '%s%s' "$1" "the image has nothing that runs TypeScript: that takes node 22.18 or 23.6 and later (it has ${2:-none}${3:+.$3}), node with esbuild, deno or bun; create the box with such an image, or send JavaScript" >&2`,
	"python": `command -v python3 >/dev/null && exec python3 -
command -v python >/dev/null && exec python -
printf '%s%s' "$1" 'the image has no Python; create the box with an image that has python3' >&2`,
}

func (e *Endpoints) readCode(w http.ResponseWriter, r *http.Request) (*command, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return nil, err
	}
	var body codeBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return nil, err
	}
	script, known := interpreters[body.Language]
	if !known {
		return nil, problem.Invalid("/language", "must be js, ts or python")
	}
	if body.Code == "" {
		return nil, problem.Invalid("/code", "must not be empty")
	}
	mark := "boxgate-" + rand.Text() + ": "
	asCommand := execBody{Command: []string{"sh", "-c", script, "boxgate", mark}, Folder: body.Folder, Timeout: body.Timeout}
	req, err := asCommand.request()
	if err != nil {
		return nil, err
	}
	req.Stdin = strings.NewReader(body.Code)
	job := history.Job{Type: history.Shell, Prompt: body.Language + ": " + body.Code, Timeout: milliseconds(body.Timeout)}
	return &command{box: box.ID, request: req, job: job, mark: mark}, nil
}

// markWatch passes a command's standard error on to w, unless it begins with mark. Only our scripts know the mark, so the
// rest is then the script's message about the missing interpreter.
type markWatch struct {
	mark string // empty: everything is passed on
	w    io.Writer

	mu     sync.Mutex
	prefix []byte // the beginning, while it may still turn out to be mark, or is
	pass   bool
}

// Write implements [io.Writer].
func (l *markWatch) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mark == "" || l.pass {
		return l.w.Write(b)
	}
	both := append(slices.Clone(l.prefix), b...)
	if n := min(len(both), len(l.mark)); string(both[:n]) != l.mark[:n] {
		l.pass, l.prefix = true, nil
		if _, err := l.w.Write(both); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	l.prefix = both[:min(len(both), maxMessage)]
	return len(b), nil
}

// maxMessage bounds the message of a script, in bytes.
const maxMessage = 4 << 10

// message returns the script's message, if there is one. Otherwise it passes on output held back because it started like
// the mark.
func (l *markWatch) message() (what string, lacking bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if text, ok := strings.CutPrefix(string(l.prefix), l.mark); ok && l.mark != "" {
		return text, true
	}
	if len(l.prefix) > 0 {
		_, _ = l.w.Write(l.prefix)
		l.prefix = nil
	}
	return "", false
}
