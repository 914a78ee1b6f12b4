package boxes

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newSkill is `gateway box skill`.
func newSkill(o *cli.Options) *cobra.Command {
	cmd := cli.Group("skill", "Add, remove and list the skills of the agent of a box")
	cmd.AddCommand(&cobra.Command{
		Use: "add BOX SKILL...", Short: "Add skills: OWNER/REPOSITORY or OWNER/REPOSITORY/SKILL of GitHub", Args: cli.MinArgs(2),
		Long: "Add skills: OWNER/REPOSITORY or OWNER/REPOSITORY/SKILL of GitHub. The box installs them before the next run of its agent; its policy\n" +
			"must allow github.com.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return eachSkill(cmd, o, args, func(client *api.Client, skill string) error {
				return client.Do(cmd.Context(), "POST", api.BoxPath(args[0], "config/skills"), map[string]string{"skill_id": skill}, nil)
			})
		},
	}, &cobra.Command{
		Use: "rm BOX SKILL...", Short: "Remove skills; their files are removed before the next run of the agent", Args: cli.MinArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return eachSkill(cmd, o, args, func(client *api.Client, skill string) error {
				words := strings.Split(skill, "/")
				if len(words) != 2 && len(words) != 3 || slices.Contains(words, "") {
					return cli.Usagef("a skill is OWNER/REPOSITORY or OWNER/REPOSITORY/SKILL")
				}
				path := []string{"config/skills"}
				for _, w := range words {
					path = append(path, url.PathEscape(w))
				}
				return client.Do(cmd.Context(), "DELETE", api.BoxPath(args[0], path...), nil, nil)
			})
		},
	}, &cobra.Command{
		Use: "list BOX", Aliases: []string{"ls"}, Short: "List the skills of a box", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return showSkills(cmd, o, args[0]) },
	})
	for _, sub := range cmd.Commands() {
		cli.MapFields(sub, map[string]string{"/skill_id": "SKILL"})
	}
	return cmd
}

// eachSkill calls change for each skill in the arguments, and prints the skills of the box.
func eachSkill(cmd *cobra.Command, o *cli.Options, args []string, change func(*api.Client, string) error) error {
	client, err := o.Client()
	if err != nil {
		return err
	}
	for _, skill := range args[1:] {
		if err := change(client, skill); err != nil {
			return fmt.Errorf("%s: %w", skill, err)
		}
	}
	return showSkills(cmd, o, args[0])
}

// showSkills prints the skills of a box: one on a line, or with --json a list.
func showSkills(cmd *cobra.Command, o *cli.Options, box string) error {
	client, err := o.Client()
	if err != nil {
		return err
	}
	var b struct {
		EnabledSkills []string `json:"enabled_skills"`
	}
	if err := client.Get(cmd.Context(), api.BoxPath(box), &b); err != nil {
		return err
	}
	if o.JSON {
		return cli.WriteJSON(cmd.OutOrStdout(), append([]string{}, b.EnabledSkills...))
	}
	for _, skill := range b.EnabledSkills {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), word(skill)); err != nil {
			return err
		}
	}
	return nil
}

// envPath is the API path of the environment of new boxes.
const envPath = "/v2/box/settings/env"

// envAnswer is the environment of new boxes as the API returns it.
type envAnswer struct {
	EnvVars map[string]string `json:"env_vars"`
}

// printNames prints the names of the variables. The gateway does not return values.
func printNames(w io.Writer, e envAnswer) error {
	for _, name := range slices.Sorted(maps.Keys(e.EnvVars)) {
		if _, err := fmt.Fprintln(w, word(name)); err != nil {
			return err
		}
	}
	return nil
}

// newEnv is `gateway box env`.
func newEnv(o *cli.Options) *cobra.Command {
	cmd := cli.Group("env", "Set the environment variables of all boxes that will be created")
	cmd.AddCommand(&cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the names of the variables; values are never shown", Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Call(cmd, "GET", envPath, nil, cli.Decoded(printNames))
		},
	}, newEnvSet(o), &cobra.Command{
		Use: "unset NAME...", Aliases: []string{"rm"}, Short: "Remove variables; boxes that exist keep them", Args: cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := o.Call(cmd, "DELETE", envPath+"/"+url.PathEscape(name), nil, cli.Silent); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			return nil
		},
	}, &cobra.Command{
		Use: "replace FILE", Short: "Replace all variables by lines NAME=VALUE of a file, or of standard input for -", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			vars := map[string]string{}
			if err := readVariables(NewInput(cmd), "FILE", args[0], vars); err != nil {
				return err
			}
			return o.Call(cmd, "PUT", envPath, envAnswer{vars}, cli.Decoded(printNames))
		},
	})
	return cmd
}

func newEnvSet(o *cli.Options) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "set [NAME=VALUE | NAME]...", Short: "Set variables; boxes that exist stay as they are", Args: cli.MinArgs(0),
		Long: "Set variables; boxes that exist stay as they are. NAME without a value takes the value here, which keeps it out of the process list.\n" +
			"Every box and its programs can read them: an API key belongs in a header rule (`gateway headers set`), which the box cannot read.",
		Example: "  gateway box env set LOG_LEVEL=info\n  gateway box env set --file variables",
		RunE: func(cmd *cobra.Command, args []string) error {
			vars := map[string]string{}
			if file != "" {
				if err := readVariables(NewInput(cmd), "--file", file, vars); err != nil {
					return err
				}
			}
			for _, arg := range args {
				name, value, err := variable("argument", arg)
				if err != nil {
					return err
				}
				vars[name] = value
			}
			if len(vars) == 0 {
				return cli.Usagef("give NAME=VALUE, or --file with such lines")
			}
			for _, name := range slices.Sorted(maps.Keys(vars)) {
				err := o.Call(cmd, "PUT", envPath+"/"+url.PathEscape(name), map[string]string{"value": vars[name]}, cli.Silent)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "file of lines NAME=VALUE, or - for standard input")
	cli.MapFields(cmd, map[string]string{"/value": "VALUE"})
	return cmd
}

// newInitCommand is `gateway box init-command`.
func newInitCommand(o *cli.Options) *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use: "init-command BOX [COMMAND | --none]", Short: "Print, set or remove the shell command that runs at each start of a box with keep-alive", Args: cli.MinArgs(1),
		Example: "  gateway box init-command demo './server >server.log 2>&1 &'",
		RunE: func(cmd *cobra.Command, args []string) error {
			path := api.BoxPath(args[0], "startup")
			method, body := "GET", any(nil)
			switch {
			case len(args) > 2 || none && len(args) == 2:
				return cli.Usagef("give one COMMAND, in quotes, or --none")
			case none:
				method = "DELETE"
			case len(args) == 2:
				text, err := NewInput(cmd).Text("COMMAND", args[1])
				if err != nil {
					return err
				}
				method, body = "PUT", map[string]string{"init_command": text}
			}
			return o.Call(cmd, method, path, body, func(w io.Writer, answer json.RawMessage) error {
				var now struct {
					InitCommand string `json:"init_command"`
				}
				if err := json.Unmarshal(answer, &now); err != nil || now.InitCommand == "" {
					return err
				}
				_, err := fmt.Fprintln(w, cli.Prose(now.InitCommand))
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&none, "none", false, "remove the command")
	cli.MapFields(cmd, map[string]string{"/init_command": "COMMAND"})
	return cmd
}
