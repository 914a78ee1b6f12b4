package boxes

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/envfile"
)

// maxSecret bounds a secret that is read, in bytes.
const maxSecret = 64 << 10

// Input reads the flags of a command that take files or standard input, which only one of them can have. Not safe for concurrent use.
type Input struct {
	Stdin io.Reader
	by    string // the flag that has read standard input
}

// NewInput returns the input of a command.
func NewInput(cmd *cobra.Command) *Input { return &Input{Stdin: cmd.InOrStdin()} }

// Used reports whether a flag has read standard input.
func (in *Input) Used() bool { return in.by != "" }

// standard returns standard input for a flag or argument.
func (in *Input) standard(flag string) (io.Reader, error) {
	if in.by != "" {
		return nil, cli.Usagef("%s and %s cannot both read standard input", in.by, flag)
	}
	in.by = flag
	return in.Stdin, nil
}

// Secret reads the secret in a file, or in standard input for "-", without the line break at its end. An empty name is no secret. A
// file that cannot be opened is not named in the error, because it may be the secret itself.
func (in *Input) Secret(flag, name string) (string, error) {
	var data []byte
	var err error
	switch name {
	case "":
		return "", nil
	case "-":
		r, used := in.standard(flag)
		if used != nil {
			return "", used
		}
		data, err = io.ReadAll(io.LimitReader(r, maxSecret+1))
	default:
		data, err = readFile(name, maxSecret+1)
	}
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return "", cli.Usagef("%s: this file cannot be read; it takes the name of a file, or - for standard input", flag)
	}
	if err != nil {
		return "", cli.FileError(err)
	}
	text := strings.TrimRight(string(data), "\r\n")
	switch {
	case text == "":
		return "", cli.Usagef("%s: it is empty", flag)
	case len(text) > maxSecret, strings.ContainsAny(text, "\r\n"):
		return "", cli.Usagef("%s: it must have one line of at most %d bytes", flag, maxSecret)
	}
	return text, nil
}

// readFile reads at most that many bytes of a file.
func readFile(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// maxText bounds a text that is read, in bytes. The gateway's limits are below.
const maxText = 16 << 20

// Text returns an argument itself, the file after "@", or standard input for "-".
func (in *Input) Text(flag, arg string) (string, error) {
	var data []byte
	var err error
	switch name, file := strings.CutPrefix(arg, "@"); {
	case arg == "-":
		r, used := in.standard(flag)
		if used != nil {
			return "", used
		}
		data, err = io.ReadAll(io.LimitReader(r, maxText+1))
	case file:
		data, err = readFile(name, maxText+1)
	default:
		return arg, nil
	}
	if err == nil && len(data) > maxText {
		return "", cli.Usagef("%s: has more than %d bytes", flag, maxText)
	}
	return string(data), cli.FileError(err)
}

// Document returns a JSON or YAML document: the text itself, @FILE or - for standard input. An empty argument is no document. form names the
// document in errors.
func (in *Input) Document(flag, arg, form string) (json.RawMessage, error) {
	if arg == "" {
		return nil, nil
	}
	text, err := in.Text(flag, arg)
	if err != nil {
		return nil, err
	}
	data := bytes.TrimSpace([]byte(text))
	if len(data) > 0 && json.Valid(data) {
		return data, nil
	}
	var doc any
	if len(data) > 0 && yaml.Unmarshal(data, &doc) == nil {
		if out, err := json.Marshal(doc); err == nil && (out[0] == '{' || out[0] == '[') {
			return out, nil
		}
	}
	return nil, cli.Usagef("%s: this is not %s in JSON or YAML; give the text itself, @FILE, or - for standard input", flag, form)
}

// Variables are the flags --env and --env-file.
type Variables struct{ list, files []string }

// Add defines the flags. purpose completes the help of --env: "for every command in the box".
func (v *Variables) Add(cmd *cobra.Command, purpose string) {
	cmd.Flags().StringArrayVar(&v.list, "env", nil, "NAME=VALUE "+purpose+", or NAME for the value here, which keeps it out of the process list (may be repeated)")
	cmd.Flags().StringArrayVar(&v.files, "env-file", nil, "file of lines NAME=VALUE, or - for standard input (may be repeated); --env wins")
}

// Map returns the variables, or nil if there are no flags.
func (v *Variables) Map(in *Input) (map[string]string, error) {
	vars := map[string]string{}
	for _, name := range v.files {
		if err := readVariables(in, "--env-file", name, vars); err != nil {
			return nil, err
		}
	}
	for _, arg := range v.list {
		name, value, err := variable("--env", arg)
		if err != nil {
			return nil, err
		}
		vars[name] = value
	}
	if len(vars) == 0 {
		return nil, nil
	}
	return vars, nil
}

// variable parses NAME=VALUE, or NAME for a variable of this process.
func variable(flag, arg string) (name, value string, err error) {
	name, value, given := strings.Cut(arg, "=")
	if given || name == "" {
		if name == "" {
			return "", "", cli.Usagef("%s %q is not NAME=VALUE", flag, arg)
		}
		return name, value, nil
	}
	value, here := os.LookupEnv(name)
	if !here {
		return "", "", cli.Usagef("%s %q is neither NAME=VALUE nor a variable here", flag, name)
	}
	return name, value, nil
}

// readVariables adds the variables in a file to vars.
func readVariables(in *Input, flag, name string, vars map[string]string) error {
	if name != "-" {
		name = "@" + name
	}
	text, err := in.Text(flag, name)
	if err != nil {
		return err
	}
	for _, v := range envfile.Parse(text) {
		vars[v.Name] = v.Value
	}
	return nil
}
