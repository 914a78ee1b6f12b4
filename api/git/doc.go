// Package git serves git in boxes. It runs the box's own git, and curl for pull requests, as the box's user, so that a
// malicious repository or git configuration affects only the box. Names, branches and repositories from a caller never
// become options, and a GitHub token becomes header rules, never part of a command.
package git
