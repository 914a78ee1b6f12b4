// Package git serves git in boxes. It runs the box's own git, and curl for pull requests, as the box's user: whatever a
// repository and its configuration bring about can only happen in the box. What a caller gives as a name, a branch or
// a repository never becomes an option, and a token of GitHub becomes header rules, never a part of a command.
package git
