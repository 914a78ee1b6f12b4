package content

import (
	"net/http"
	"strings"
	"unicode"
)

// Message is one JSON-RPC message of a client of the Model Context Protocol, or a request that only concerns its session.
type Message struct {
	Method  string // of a request or notification; otherwise ""
	Tool    string // that tools/call calls
	Session bool   // it is a response to the server, or a GET or DELETE without a body
}

// CallTool is the method that calls a tool.
const CallTool = "tools/call"

const (
	errMessage = flaw("the body is not a JSON-RPC 2.0 message of MCP")
	errName    = flaw("the method or tool has an unusual name")
	errMirror  = flaw("Mcp-Method or Mcp-Name differs from the body")
)

// readMCP reads the messages of a request over streamable HTTP. GET opens the stream of the session and DELETE ends it; both have
// no body. Other methods without a body carry no message.
func readMCP(h *Head, body []byte) ([]Message, error) {
	if h.Method != http.MethodPost {
		switch {
		case h.HasBody:
			return nil, errBodyOfGet
		case h.Method == http.MethodGet || h.Method == http.MethodDelete:
			return []Message{{Session: true}}, nil
		}
		return nil, nil
	}
	if media, err := h.mediaType(); err != nil || media != "application/json" {
		return nil, errType
	}
	doc, err := parseJSON(body)
	if err != nil {
		return nil, err
	}
	items, err := doc.batch()
	if err != nil {
		return nil, err
	}
	all := make([]Message, 0, len(items))
	for i := range items {
		m, err := readMessage(&items[i])
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, h.checkMirror(doc.kind, all[0])
}

// readMessage reads one message (JSON-RPC 2.0, 4 and 5). MCP forbids lists as parameters, and null as ID.
func readMessage(v *value) (m Message, err error) {
	if v.kind != '{' {
		return m, errMessage
	}
	if v.misspells("jsonrpc", "id", "method", "params", "result", "error") {
		return m, errSpelling
	}
	method, params, id := v.get("method"), v.get("params"), v.get("id")
	if v.get("jsonrpc").text != "2.0" || v.get("jsonrpc").kind != '"' || id.kind != 0 && !id.isID() {
		return m, errMessage
	}
	result, failure := v.get("result").kind != 0, v.get("error").kind != 0
	switch {
	case method.kind == 0:
		if result == failure || params.kind != 0 || id.kind == 0 {
			return m, errMessage
		}
		return Message{Session: true}, nil
	case method.kind != '"' || result || failure || params.kind != 0 && params.kind != '{':
		return m, errMessage
	case !isPlainName(method.text):
		return m, errName
	}
	m.Method = method.text
	if strings.EqualFold(bare(m.Method), bare(CallTool)) {
		return readToolCall(m, &params)
	}
	return m, nil
}

func readToolCall(m Message, params *value) (Message, error) {
	tool := params.get("name")
	switch {
	case m.Method != CallTool:
		return m, errName
	case params.misspells("name"):
		return m, errSpelling
	case tool.kind != '"':
		return m, errMessage
	case !isPlainName(tool.text):
		return m, errName
	}
	m.Tool = tool.text
	return m, nil
}

// isID reports whether a value is an ID that all implementations return unchanged: a string or an integer.
func (v *value) isID() bool {
	return v.kind == '"' || v.kind == '0' && len(v.text) <= 16 && !strings.ContainsAny(v.text, ".eE")
}

// isPlainName reports whether a name is one that servers do not trim or cut.
func isPlainName(s string) bool {
	return s != "" && len(s) <= 256 && strings.TrimSpace(s) == s &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// checkMirror compares the fields that repeat the method and the tool in the head: servers and proxies between may use either.
func (h *Head) checkMirror(kind byte, m Message) error {
	if len(h.MCPMethod) == 0 && len(h.MCPName) == 0 {
		return nil
	}
	if kind != '{' || len(h.MCPMethod) > 1 || len(h.MCPName) > 1 || len(h.MCPMethod) == 1 && h.MCPMethod[0] != m.Method ||
		len(h.MCPName) == 1 && m.Method == CallTool && h.MCPName[0] != m.Tool {
		return errMirror
	}
	return nil
}
