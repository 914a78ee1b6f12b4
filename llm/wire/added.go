package wire

import (
	"bytes"
	"slices"
	"strings"

	"boxgate/llm"
)

// This file finds the requests whose vendor adds input that is not in their body. Its tokens are known only from the response, so that one
// that is cut short before it reports them would be charged too little.

// stored are the members of a document that name input at the vendor, in their bare form.
var stored = []string{"previousresponseid", "conversation", "cachedcontent", "mcpservers", "container", "plugins", "websearchoptions"}

// ownTools are the beginnings of the types of tools that the client runs, or whose results are in the body.
var ownTools = []string{"function", "custom", "local_shell", "apply_patch", "bash_", "text_editor_", "computer", "memory_"}

// addsInput reports whether a value makes the vendor add input.
func (r *request) addsInput(place []byte, kind byte, text []byte) bool {
	if kind == 'n' || kind == 'f' {
		return false
	}
	if r.vendor == llm.Bedrock {
		if string(place) == "toolConfig/tools/[]/systemTool" || string(place) == "promptVariables" {
			return true
		}
		place = bytes.TrimPrefix(place, []byte("additionalModelRequestFields/")) // members of the model's own API
	}
	if bytes.IndexByte(place, '/') < 0 {
		return slices.Contains(stored, bare(string(place))) || kind == '{' && string(place) == "prompt"
	}
	switch string(place) {
	case "input/[]/id":
		return r.vendor == llm.OpenAI // a reference to an item, or one that is stored
	case "tools/[]/type":
		return !slices.ContainsFunc(ownTools, func(own string) bool { return strings.HasPrefix(string(text), own) })
	}
	tool, ok := bytes.CutPrefix(place, []byte("tools/[]/"))
	return ok && r.vendor == llm.Google && bytes.IndexByte(tool, '/') < 0 && bare(string(tool)) != "functiondeclarations"
}

// references are the keys of references, as some server takes them. The first is in many schemas, whose value is an object.
var references = [][]byte{
	[]byte("url"), []byte("image_url"), []byte("imageUrl"), []byte("file_url"), []byte("fileUrl"), []byte("file_uri"), []byte("fileUri"),
	[]byte("file_id"), []byte("fileId"), []byte("file_ids"), []byte("fileIds"),
}

// refersBy implements [refers].
func (r *request) refersBy(key []byte) bool {
	if r.vendor == llm.Bedrock && string(key) == "uri" { // of an object in S3
		return true
	}
	for _, known := range references {
		if len(known) == len(key) && bytes.EqualFold(known, key) {
			return true
		}
	}
	return false
}

// refersTo implements [refers]. An object is that of a schema, or has the reference inside.
func (r *request) refersTo(kind byte, text []byte) {
	if kind == '[' || kind == '"' && len(text) > 0 && !bytes.HasPrefix(text, []byte("data:")) {
		r.adds = true
	}
}
