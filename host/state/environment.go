package state

import "maps"

// environment is that given with the box, and the placeholders of the header rules in force, which take precedence: they keep
// a secret out of the box. It is added to every command and is not in the container's own configuration, which is on disk
// in the clear.
func (b *Box) environment() map[string]string {
	env := make(map[string]string, len(b.env))
	for name, value := range b.env {
		env[name] = value.Reveal()
	}
	maps.Copy(env, b.Policy.Load().Tokens())
	return env
}

// EnvironmentWith is the environment with variables added for one command. They win over those given with the box, but not over the
// placeholders of the header rules in force.
func (b *Box) EnvironmentWith(added map[string]string) map[string]string {
	env := b.environment()
	maps.Copy(env, added)
	maps.Copy(env, b.Policy.Load().Tokens())
	return env
}
