package ssh

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/internal/memory"
	"boxgate/internal/sshflow"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/recovery"
	sshrule "boxgate/rule/ssh"
)

const (
	maxSessions  = 10       // of one connection at the same time
	maxVariables = 32       // of one session
	maxRequest   = 64 << 10 // bytes of one request
	pumpBuffer   = 64 << 10

	// sessionCost is the memory that a session uses: copy buffers, and the packets being written.
	sessionCost = 4*pumpBuffer + 128<<10
)

// endOfWrite tells the peer that the sender accepts no more data on the channel, so that "ssh host yes | head -1" ends
// (OpenSSH's PROTOCOL, 2.1).
const endOfWrite = "eow@openssh.com"

// session is one channel of the box, on which it runs one command.
type session struct {
	c   *conn
	box gossh.Channel
	// server is the matching channel to the server; nil until it is needed.
	server    gossh.Channel
	pumps     sync.WaitGroup
	env       [][]byte // payloads of "env" requests, sent before the command
	requested bool     // a command was requested, allowed or not
	onEnd     func(Outcome)
	stdin     *sshflow.Stream
	inputDone chan struct{} // closed when all input from the box is forwarded or dropped; nil before the command starts

	in, out atomic.Int64 // bytes to and from the box
}

// serveSession serves one session until both sides have closed it.
func (c *conn) serveSession(channel gossh.NewChannel) {
	if !c.Memory.Acquire(memory.Streams, sessionCost) {
		_ = channel.Reject(gossh.ResourceShortage, "boxgate: the box has reached its memory limit in the gateway")
		return
	}
	defer c.Memory.Release(memory.Streams, sessionCost)
	box, requests, err := channel.Accept()
	if err != nil {
		return
	}
	s := &session{c: c, box: box, stdin: c.box.AddStream(), onEnd: func(Outcome) {}}
	defer s.stdin.Remove()
	defer func() { s.onEnd(Outcome{In: s.in.Load(), Out: s.out.Load()}) }()
	s.pumps.Go(c.contained(func() { // drained only: no command reads extended data from the client
		extended := c.box.AddStream()
		defer extended.Remove()
		pump(nil, box.Stderr(), extended, nil)
	}))
	sshflow.ForEach(c.box, requests, func(request *gossh.Request) {
		ok, then := s.handleRequest(request)
		_ = request.Reply(ok, nil)
		if then != nil {
			then()
		}
	})
	s.closeSession()
}

// closeSession closes the session after the box has closed it. It first waits, at most for farewell, for the server to take the
// box's input.
func (s *session) closeSession() {
	if s.server != nil {
		if s.inputDone != nil {
			late := time.NewTimer(drainTimeout)
			defer late.Stop()
			select {
			case <-s.inputDone:
			case <-late.C:
			}
		}
		_ = s.server.Close()
	}
	s.pumps.Wait()
}

// handleRequest decides about a request of the box and forwards it if allowed. It returns a function to call after the reply was
// sent, or nil.
func (s *session) handleRequest(r *gossh.Request) (ok bool, then func()) {
	if len(r.Payload) > maxRequest {
		return false, nil
	}
	limited := s.c.Rule.Limited()
	switch r.Type {
	case "env":
		return s.addVariable(r.Payload), nil
	case "exec", "shell", "subsystem":
		return s.startCommand(r)
	case "pty-req":
		return !limited && !s.requested && s.ensureServer() && s.forwardRequest(r), nil
	case "window-change":
		return !limited && s.server != nil && s.forwardRequest(r), nil
	case "signal", "break", endOfWrite:
		return s.inputDone != nil && s.forwardRequest(r), nil
	case "auth-agent-req@openssh.com", "x11-req":
		s.c.recordRefusal(r.Type)
	}
	return false, nil
}

// forwardRequest sends a request to the server and returns its answer.
func (s *session) forwardRequest(r *gossh.Request) bool {
	ok, err := s.server.SendRequest(r.Type, r.WantReply, r.Payload)
	return err == nil && ok
}

// addVariable stores an environment variable for the command: GIT_PROTOCOL with the values that git sends, and locales if the
// rule is not limited. Which of them apply is up to the server.
func (s *session) addVariable(payload []byte) bool {
	var v struct{ Name, Value string }
	if s.requested || len(s.env) >= maxVariables || gossh.Unmarshal(payload, &v) != nil || len(v.Value) > 256 {
		return false
	}
	git := v.Name == "GIT_PROTOCOL" && slices.Contains([]string{"version=0", "version=1", "version=2"}, v.Value)
	locale := v.Name == "LANG" || strings.HasPrefix(v.Name, "LC_") && len(v.Name) < 64
	if !git && (!locale || s.c.Rule.Limited()) {
		return false
	}
	s.env = append(s.env, slices.Clone(payload))
	return true
}

// startCommand decides about the command and runs it. A refusal looks like a failed command: the request succeeds, followed by a
// line on standard error and an exit status.
func (s *session) startCommand(r *gossh.Request) (ok bool, then func()) {
	var v struct{ Text string }
	if s.requested || r.Type != "shell" && gossh.Unmarshal(r.Payload, &v) != nil {
		return false, nil // one command per session (RFC 4254, 6.5)
	}
	s.requested = true
	request, command, reason := s.c.judge(r.Type, v.Text)
	onEnd, withinRate := s.c.OnRequest(request)
	switch {
	case !withinRate:
		return true, func() { s.refuseCommand("too many commands in a short time") }
	case !request.Decision.Allowed():
		onEnd(Outcome{})
		return true, func() { s.refuseCommand(reason) }
	}
	s.onEnd = onEnd
	if !s.ensureServer() {
		return true, func() { s.refuseCommand("the server opened no session") }
	}
	for _, env := range s.env {
		_, _ = s.server.SendRequest("env", false, env)
	}
	var payload []byte
	if r.Type != "shell" {
		payload = gossh.Marshal(struct{ Text string }{command})
	}
	if started, err := s.server.SendRequest(r.Type, true, payload); err != nil || !started {
		return false, nil
	}
	s.inputDone = make(chan struct{})
	return true, func() { s.pumps.Go(s.c.contained(s.forwardInput)) }
}

// refuseCommand reports the reason to the box on standard error, and ends the session with exit status 1.
func (s *session) refuseCommand(reason string) {
	_, _ = s.box.Stderr().Write([]byte("boxgate: " + reason + "\r\n"))
	_, _ = s.box.SendRequest("exit-status", false, gossh.Marshal(struct{ Status uint32 }{1}))
	_ = s.box.CloseWrite()
	_ = s.box.Close()
	s.pumps.Go(s.c.contained(func() { pump(nil, s.box, s.stdin, nil) }))
}

// ensureServer opens the session at the server on first use, and starts to forward its output.
func (s *session) ensureServer() bool {
	if s.server != nil {
		return true
	}
	server, requests, opened := s.c.openSession()
	if !opened {
		return false
	}
	s.server = server
	statusDone := make(chan struct{})
	s.pumps.Go(s.c.contained(func() {
		defer close(statusDone)
		s.forwardStatus(requests)
	}))
	s.pumps.Go(s.c.contained(func() {
		s.forwardOutput()
		_ = s.box.CloseWrite()
		<-statusDone
		_ = s.box.Close()
	}))
	return true
}

// openSession opens a session at the server. If the server disconnects during the call, the library can wait for a reply
// forever; then only that one goroutine leaks.
func (c *conn) openSession() (server gossh.Channel, requests <-chan *gossh.Request, opened bool) {
	answered := make(chan struct{})
	var channel gossh.Channel
	var serverRequests <-chan *gossh.Request
	err := recovery.ErrFault
	go c.contained(func() {
		defer close(answered)
		channel, serverRequests, err = c.server.OpenChannel("session", nil)
	})()
	select {
	case <-answered:
		return channel, serverRequests, err == nil
	case <-c.gone:
		return nil, nil, false
	}
}

// forwardStatus forwards the exit status and flow control of the command until the server closes the session. It refuses other
// requests.
func (s *session) forwardStatus(requests <-chan *gossh.Request) {
	sshflow.ForEach(s.c.upstream, requests, func(r *gossh.Request) {
		known := r.Type == "exit-status" || r.Type == "exit-signal" || r.Type == "xon-xoff" || r.Type == endOfWrite
		if known && len(r.Payload) <= maxRequest {
			_, _ = s.box.SendRequest(r.Type, false, r.Payload)
		}
		_ = r.Reply(false, nil)
	})
}

// forwardOutput forwards the output of the command.
func (s *session) forwardOutput() {
	var both sync.WaitGroup
	output, errors := s.c.upstream.AddStream(), s.c.upstream.AddStream()
	defer output.Remove()
	defer errors.Remove()
	both.Go(s.c.contained(func() { pump(s.box, s.server, output, &s.in) }))
	both.Go(s.c.contained(func() { pump(s.box.Stderr(), s.server.Stderr(), errors, &s.in) }))
	both.Wait()
}

// forwardInput forwards the input of the command.
func (s *session) forwardInput() {
	defer close(s.inputDone)
	pump(s.server, s.box, s.stdin, &s.out)
	_ = s.server.CloseWrite()
}

// gitCommand is a command that git runs over SSH: a service and the path of a repository.
type gitCommand struct{ service, path string }

// errNotGit is shown to the box.
var errNotGit = errors.New("this is not a command that git sends: only git-upload-pack, git-receive-pack and git-upload-archive with one quoted path are allowed")

// parseGit parses a command in exactly the form that git sends: the service, a space, and the path in single quotes. Other
// spellings are rejected, even if a shell would treat them alike. The path contains only characters that need no escaping
// in single quotes, so every shell on the server reads the command that was judged.
func parseGit(command string) (gitCommand, error) {
	service, quoted, ok := strings.Cut(command, " ")
	if !ok || !slices.Contains(sshrule.GitServices(), service) || len(quoted) < len("'x'") || len(quoted) > maxPath {
		return gitCommand{}, errNotGit
	}
	path, opened := strings.CutPrefix(quoted, "'")
	path, closed := strings.CutSuffix(path, "'")
	if !opened || !closed || strings.ContainsFunc(path, func(r rune) bool { return !isPathRune(r) }) {
		return gitCommand{}, errNotGit
	}
	return gitCommand{service, path}, nil
}

// maxPath is the longest accepted path in bytes; names of repositories are shorter.
const maxPath = 512

func isPathRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("/._-", r)
}

// String returns the command as git writes it.
func (c gitCommand) String() string { return c.service + " '" + c.path + "'" }

// repo returns the repository's name for the log.
func (c gitCommand) repo() string { return strings.TrimSuffix(strings.TrimPrefix(c.path, "/"), ".git") }

// judge decides about a command, shell or subsystem. It returns the command in the form to forward, which is the form that
// was judged, and for a refusal the text that the box sees.
func (c *conn) judge(kind, text string) (request Request, command, reason string) {
	request = Request{Verb: kind, What: firstWord(text), Decision: policy.Decision{Reason: name.ReasonRequestRule}}
	switch {
	case !c.Rule.Limited():
		request.Decision = policy.Decision{Verdict: policy.Allow} // the connection itself was allowed
		return request, text, ""
	case kind != "exec":
		return request, "", "the rule allows single commands only, not a " + kind
	}
	if c.Rule.Command(text) {
		request.Decision.Verdict, request.Decision.Rule = policy.Allow, "command "+name.Quote(text)
		return request, text, ""
	}
	if len(c.Rule.Repos) == 0 {
		return request, "", "the rule does not allow this command"
	}
	git, err := parseGit(text)
	if err != nil {
		return request, "", err.Error()
	}
	request.Verb, request.What = git.service, git.repo()
	repo, allowed := c.Rule.Repo(c.Host, git.service, git.path)
	if request.Decision.Rule = repo; allowed {
		request.Decision.Verdict = policy.Allow
	}
	return request, git.String(), fmt.Sprintf("the rule does not allow %s on %s", git.service, git.repo())
}

// firstWord returns the program's name without its arguments, which could contain secrets.
func firstWord(text string) string {
	const most = 64
	word, _, _ := strings.Cut(text, " ")
	return word[:min(len(word), most)]
}
