package boxes

import (
	"fmt"
	"io"
	"net/url"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
)

// newGit is `gateway box git`.
func newGit(o *cli.Options) *cobra.Command {
	cmd := cli.Group("git", "Work with repositories in a box, with the box's own git")
	cmd.AddCommand(newGitClone(o), newGitStatus(o), newGitDiff(o), newGitCommit(o), newGitPush(o), newGitCheckout(o), newGitPR(o), newGitConfig(o), newGitExec(o))
	return cmd
}

// repository defines the flag --folder.
func repository(cmd *cobra.Command, folder *string) {
	cmd.Flags().StringVar(folder, "folder", "", "directory of the repository, absolute or below the home directory (default: the home directory)")
}

// set sets the members that are not empty.
func set(body map[string]any, members map[string]string) map[string]any {
	for name, value := range members {
		if value != "" {
			body[name] = value
		}
	}
	return body
}

// gitOutput is the output of git as the API returns it.
type gitOutput struct {
	Output    string `json:"output"`
	Status    string `json:"status"`
	Diff      string `json:"diff"`
	Truncated bool   `json:"truncated"`
}

// printOutput prints the output of git.
func printOutput(cmd *cobra.Command) cli.Render {
	return cli.Decoded(func(w io.Writer, a gitOutput) error {
		truncated(cmd, a.Truncated)
		return put(w, a.Output+a.Status+a.Diff)
	})
}

func newGitClone(o *cli.Options) *cobra.Command {
	var branch, folder, token string
	var depth int64
	cmd := &cobra.Command{
		Use: "clone BOX REPO", Short: "Clone a repository: an address, or OWNER/NAME for GitHub", Args: cli.ExactArgs(2),
		Long: "Clone a repository: an address, or OWNER/NAME for GitHub. A token becomes header rules of the box for github.com and api.github.com:\n" +
			"the gateway adds it to requests, and the box does not have it. The policy of the box must allow the host.",
		Example: "  gateway box git clone demo acme/app --depth 1\n  gateway box git clone demo acme/app --github-token-file token",
		RunE: func(cmd *cobra.Command, args []string) error {
			secret, err := NewInput(cmd).Secret("--github-token-file", token)
			if err != nil {
				return err
			}
			body := set(map[string]any{"repo": args[1]}, map[string]string{"branch": branch, "folder": folder, "github_token": secret})
			if cmd.Flags().Changed("depth") {
				body["depth"] = depth
			}
			return o.Call(cmd, "POST", api.BoxPath(args[0], "git/clone"), body, printOutput(cmd))
		},
	}
	f := cmd.Flags()
	f.StringVar(&branch, "branch", "", "branch or tag to check out (default: the repository's)")
	f.StringVar(&folder, "folder", "", "new directory, absolute or below /workspace/home (default: the name of the repository)")
	f.Int64Var(&depth, "depth", 0, "number of commits of history to fetch (default: all)")
	f.StringVar(&token, "github-token-file", "", "file with a token of GitHub, or - for standard input")
	cli.MapFields(cmd, map[string]string{"/repo": "REPO", "/github_token": "--github-token-file"})
	return cmd
}

func newGitStatus(o *cli.Options) *cobra.Command {
	return newGitRead(o, "status", "Print the changed files of a repository, as git status --porcelain does")
}

func newGitDiff(o *cli.Options) *cobra.Command {
	return newGitRead(o, "diff", "Print the differences from the last commit, staged or not")
}

// newGitRead is a command that prints the state of a repository.
func newGitRead(o *cli.Options, call, short string) *cobra.Command {
	var folder string
	cmd := &cobra.Command{
		Use: call + " BOX", Short: short, Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := api.BoxPath(args[0], "git", call)
			if folder != "" {
				path += "?" + url.Values{"folder": {folder}}.Encode()
			}
			return o.Call(cmd, "GET", path, nil, printOutput(cmd))
		},
	}
	repository(cmd, &folder)
	return cmd
}

func newGitCommit(o *cli.Options) *cobra.Command {
	var message, name, email, folder string
	cmd := &cobra.Command{
		Use: "commit BOX --message TEXT", Short: "Commit the staged changes, or all changes if none are staged, and print the commit", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := set(map[string]any{"message": message}, map[string]string{"author_name": name, "author_email": email, "folder": folder})
			return o.Call(cmd, "POST", api.BoxPath(args[0], "git/commit"), body, cli.Decoded(func(w io.Writer, c struct{ SHA, Message string }) error {
				_, err := fmt.Fprintln(w, word(c.SHA), word(c.Message))
				return err
			}))
		},
	}
	f := cmd.Flags()
	f.StringVarP(&message, "message", "m", "", "message of the commit")
	f.StringVar(&name, "author-name", "", "name of the author (default: as configured)")
	f.StringVar(&email, "author-email", "", "address of the author (default: as configured)")
	repository(cmd, &folder)
	return cmd
}

func newGitPush(o *cli.Options) *cobra.Command {
	var folder string
	cmd := &cobra.Command{
		Use: "push BOX [BRANCH]", Short: "Push a branch to origin, by default the checked-out one", Args: cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := set(map[string]any{}, map[string]string{"folder": folder})
			switch {
			case len(args) > 2:
				return cli.ExactArgs(2)(cmd, args)
			case len(args) == 2:
				body["branch"] = args[1]
			}
			return o.Call(cmd, "POST", api.BoxPath(args[0], "git/push"), body, printOutput(cmd))
		},
	}
	repository(cmd, &folder)
	cli.MapFields(cmd, map[string]string{"/branch": "BRANCH"})
	return cmd
}

func newGitCheckout(o *cli.Options) *cobra.Command {
	var folder string
	cmd := &cobra.Command{
		Use: "checkout BOX BRANCH", Short: "Check out a branch", Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := set(map[string]any{"branch": args[1]}, map[string]string{"folder": folder})
			return o.Call(cmd, "POST", api.BoxPath(args[0], "git/checkout"), body, printOutput(cmd))
		},
	}
	repository(cmd, &folder)
	cli.MapFields(cmd, map[string]string{"/branch": "BRANCH"})
	return cmd
}

func newGitPR(o *cli.Options) *cobra.Command {
	var title, text, base, folder string
	cmd := &cobra.Command{
		Use: "pr BOX --title TEXT", Short: "Open a pull request on GitHub for the checked-out branch, and print its address", Args: cli.ExactArgs(1),
		Example: "  gateway box git pr demo --folder app --title 'Fix the build' --body @description.md",
		RunE: func(cmd *cobra.Command, args []string) error {
			description, err := NewInput(cmd).Text("--body", text)
			if err != nil {
				return err
			}
			body := set(map[string]any{"title": title}, map[string]string{"body": description, "base": base, "folder": folder})
			return o.Call(cmd, "POST", api.BoxPath(args[0], "git/create-pr"), body, cli.Decoded(func(w io.Writer, p struct{ URL string }) error {
				_, err := fmt.Fprintln(w, escape(p.URL, maxMessage))
				return err
			}))
		},
	}
	f := cmd.Flags()
	f.StringVar(&title, "title", "", "title of the pull request")
	f.StringVar(&text, "body", "", "description: the text itself, @FILE, or - for standard input")
	f.StringVar(&base, "base", "", "branch to merge into (default: the repository's)")
	repository(cmd, &folder)
	return cmd
}

func newGitConfig(o *cli.Options) *cobra.Command {
	var name, email string
	cmd := &cobra.Command{
		Use: "config BOX [--name NAME] [--email ADDRESS]", Short: "Change the identity for commits in a box, and print it", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if name == "" && email == "" {
				return cli.Usagef("give --name, --email, or both")
			}
			body := set(map[string]any{}, map[string]string{"git_user_name": name, "git_user_email": email})
			return o.Call(cmd, "PUT", api.BoxPath(args[0], "config/git"), body, cli.Decoded(func(w io.Writer, i struct {
				Name  string `json:"git_user_name"`
				Email string `json:"git_user_email"`
			}) error {
				return cli.Table(w, []string{"name", word(i.Name)}, []string{"email", word(i.Email)})
			}))
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name for commits")
	cmd.Flags().StringVar(&email, "email", "", "address for commits")
	cli.MapFields(cmd, map[string]string{"/git_user_name": "--name", "/git_user_email": "--email"})
	return cmd
}

func newGitExec(o *cli.Options) *cobra.Command {
	var folder string
	cmd := &cobra.Command{
		Use: "exec BOX -- ARG...", Short: "Run any git command in a box and exit with its status", Args: cli.MinArgs(2),
		Example: "  gateway box git exec demo --folder app -- log --oneline -3",
		RunE: func(cmd *cobra.Command, args []string) error {
			body := set(map[string]any{"args": args[1:]}, map[string]string{"folder": folder})
			var got struct {
				Output, Error string
				ExitCode      int `json:"exit_code"`
				Truncated     bool
			}
			err := callInto(cmd, o, "POST", api.BoxPath(args[0], "git/exec"), body, &got)
			if err != nil {
				return err
			}
			if !o.JSON {
				truncated(cmd, got.Truncated)
				if got.Output != got.Error { // the API repeats the errors of a git that failed without output
					err = put(cmd.OutOrStdout(), got.Output)
				}
				if err == nil {
					err = put(cmd.ErrOrStderr(), got.Error)
				}
			}
			return Ended(cmd.Context())(got.ExitCode, err)
		},
	}
	repository(cmd, &folder)
	cli.MapFields(cmd, map[string]string{"/args": "ARG"})
	return cmd
}
