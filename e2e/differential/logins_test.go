package differential

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"unicode/utf16"
)

// logins are servers that authenticate connections (RFC 4559, MS-NTHT), not requests.
var logins = []row{
	{name: "ntlm", server: authenticates("NTLM"), options: "--ntlm -u ann:secret", authorizations: []string{"", ntlm(1, ""), ntlm(3, "ann")}},
	{name: "negotiate", server: authenticates("Negotiate"), authorizations: []string{"", negotiate(1, ""), negotiate(3, "ann")}, alone: "Go Node Python Java"},
	{name: "ntlm-http1", server: authenticates("NTLM"), http1: true, authorizations: []string{"", ntlm(1, ""), ntlm(3, "ann"), ""}, alone: "Go"},
	{name: "ntlm-users", server: authenticates("NTLM"), talks: func(dial func() (net.Conn, error)) (string, error) {
		var users []*visitor
		for _, user := range []string{"ann", "bob", ""} {
			c, err := dial()
			if err != nil {
				return "", err
			}
			defer c.Close()
			users = append(users, &visitor{c, bufio.NewReader(c), user})
		}
		var all strings.Builder
		for _, message := range []uint32{1, 3, 0, 0} { // in turns; 0 is a request after the login
			for _, v := range users {
				text, err := v.ask(message)
				if fmt.Fprintf(&all, "%s: %s\n", v.user, text); err != nil {
					return all.String(), err
				}
			}
		}
		return all.String(), nil
	}},
}

// visitor has a connection to log in on as user; without a user it does not log in.
type visitor struct {
	net.Conn
	in   *bufio.Reader
	user string
}

// ask sends a request with or without a login message.
func (v *visitor) ask(message uint32) (string, error) {
	field := ""
	if message != 0 && v.user != "" {
		field = "Authorization: " + ntlm(message, v.user) + "\r\n"
	}
	if _, err := io.WriteString(v, "GET / HTTP/1.1\r\nHost: ntlm-users."+domain+"\r\n"+field+"\r\n"); err != nil {
		return "", err
	}
	return bodyFrom(v.in)
}

// ntlm returns the header value of a login message.
func ntlm(message uint32, user string) string { return "NTLM " + ntlmMessage(message, user) }

func negotiate(message uint32, user string) string { return "Negotiate " + ntlmMessage(message, user) }

const ntlmSignature = "NTLMSSP\x00"

// ntlmMessage returns an NTLM message (MS-NLMP, 2.2.1) with only the user in it. Message 2, the server's, is a
// challenge.
func ntlmMessage(number uint32, user string) string {
	const unicode, target, ntlm, sign, info = 0x1, 0x4, 0x200, 0x8000, 0x800000
	fields := []uint32{number, unicode | target | ntlm | sign, 0, 0, 0, 0}
	field := func(length, at int) []uint32 { return []uint32{uint32(length)<<16 | uint32(length), uint32(at)} }
	var payload []byte
	switch number {
	case 2: // target name, flags, challenge, context, and empty target information
		fields = append(append([]uint32{number}, field(0, 48)...), unicode|target|ntlm|sign|info, 0x12345678, 0x9abcdef0, 0, 0)
		fields, payload = append(fields, field(4, 48)...), make([]byte, 4)
	case 3: // two responses, the domain, the user, the workstation, a session key, flags
		payload = binaryText(user)
		fields = []uint32{number}
		for _, length := range []int{0, 0, 0, len(payload), 0, 0} {
			fields = append(fields, field(length, 64)...)
		}
		fields = append(fields, unicode|ntlm)
	}
	out := []byte(ntlmSignature)
	for _, f := range fields {
		out = binary.LittleEndian.AppendUint32(out, f)
	}
	return base64.StdEncoding.EncodeToString(append(out, payload...))
}

// binaryText returns a text in UTF-16.
func binaryText(text string) (out []byte) {
	for _, u := range utf16.Encode([]rune(text)) {
		out = binary.LittleEndian.AppendUint16(out, u)
	}
	return out
}

// authenticates makes connections log in by a scheme, and answers with the user of the connection.
func authenticates(scheme string) server {
	return conns(http1, func(c net.Conn) {
		user := ""
		for in := bufio.NewReader(c); ; {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			status, more, body := "401 Unauthorized", "WWW-Authenticate: "+scheme, "no user"
			message, given := strings.CutPrefix(r.Header.Get("Authorization"), scheme+" ")
			switch number, who := readNTLM(message); {
			case given && number == 1:
				more += " " + ntlmMessage(2, "")
			case given && number == 3:
				user = who
				fallthrough
			case !given && user != "":
				status, more, body = "200 OK", "X-Row: a", user
			}
			if _, err := fmt.Fprintf(c, "HTTP/1.1 %s\r\n%s\r\nContent-Length: %d\r\n\r\n%s", status, more, len(body), body); err != nil {
				return
			}
		}
	})
}

// readNTLM returns the number of a client's message and, for the third one, the user.
func readNTLM(text string) (number uint32, user string) {
	data, err := base64.StdEncoding.DecodeString(text)
	rest, ok := bytes.CutPrefix(data, []byte(ntlmSignature))
	if err != nil || !ok || len(rest) < 4 {
		return 0, ""
	}
	number = binary.LittleEndian.Uint32(rest)
	if number != 3 || len(data) < 64 {
		return number, ""
	}
	length, at := int(binary.LittleEndian.Uint16(data[36:])), int(binary.LittleEndian.Uint32(data[40:]))
	if at+length > len(data) {
		return 0, ""
	}
	name := data[at : at+length]
	if flags := binary.LittleEndian.Uint32(data[60:]); flags&1 == 0 {
		return number, string(name)
	}
	var units []uint16
	for ; len(name) > 1; name = name[2:] {
		units = append(units, binary.LittleEndian.Uint16(name))
	}
	return number, string(utf16.Decode(units))
}

// resumes answers each connection with whether it resumed a session.
func resumes(config *tls.Config) server {
	return conns(config, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n\r\n%s", map[bool]string{false: "new", true: "resumed"}[c.(*tls.Conn).ConnectionState().DidResume])
		}
	})
}

// twice makes requests on two connections. The second may resume the session of the first.
func twice(authority string) func(dial func() (net.Conn, error)) (string, error) {
	return func(dial func() (net.Conn, error)) (all string, err error) {
		for range 2 {
			c, err := dial()
			if err != nil {
				return all, err
			}
			_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+authority+"\r\n\r\n")
			text, err := bodyOf(c, err)
			if all += text + "\n"; err != nil {
				return all, err
			}
			_ = c.Close()
		}
		return all, nil
	}
}
