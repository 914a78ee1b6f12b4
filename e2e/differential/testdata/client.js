// Node's https and http: ROOTS ROWS. Each line of ROWS is a name, a URL, a method, fields and the length of the body, separated by
// tabs. Fields are separated by \x1f: one request is made with each of them, in order on the same connection. It prints the last
// answer: a name, an error, the status, the type, the size, fields, and the beginning of the body.
const fs = require('fs'), [roots, file] = process.argv.slice(2);
const ca = fs.readFileSync(roots), rows = fs.readFileSync(file, 'utf8').split('\n').filter(l => l);
const compared = ['location', 'etag', 'x-row', 'www-authenticate'];
const print = parts => process.stdout.write(parts.join('\x1f') + '\x1e');

function ask(line, done) {
  const fields = line.split('\t')[3].split('\x1f');
  const agent = fields.length > 1 && new (require('https').Agent)({keepAlive: true, maxSockets: 1});
  const step = n => request(line, fields[n], agent, (failed, ...parts) => {
    if (!failed && n + 1 < fields.length) { step(n + 1); return; }
    if (agent) agent.destroy();
    print(parts);
    done();
  });
  step(0);
}

function request(line, field, agent, done) {
  const [name, url, method, , length] = line.split('\t');
  let over = false;
  const end = (...parts) => { if (!over) { over = true; done(parts[0] !== '', name, ...parts); } };
  const [key, ...value] = field.split(': ');
  const headers = field ? {[key]: value.join(': ')} : {};
  if (+length) headers['Content-Length'] = length;
  const r = require(url.startsWith('https') ? 'https' : 'http').request(url, {ca, method, headers, agent, timeout: 300000}, res => {
    const pieces = [];
    res.on('data', d => pieces.push(d));
    res.on('error', e => end(e.message, 0, '', 0, '', ''));
    res.on('aborted', () => end('aborted', 0, '', 0, '', ''));
    res.on('end', () => {
      const body = Buffer.concat(pieces);
      end('', res.statusCode, res.headers['content-type'] || '', body.length, compared.map(n => res.headers[n] || '').join('\n'), body.subarray(0, 600).toString('latin1').replace(/[\x1e\x1f]/g, '?'));
    });
  });
  r.on('error', e => end(e.message, 0, '', 0, '', ''));
  r.on('timeout', () => r.destroy(new Error('timeout')));
  if (+length && headers.Expect) r.on('continue', () => r.end(Buffer.alloc(+length)));
  else r.end(+length ? Buffer.alloc(+length) : undefined);
}

let next = 0;
const go = () => { if (next < rows.length) ask(rows[next++], go); };
for (let i = 0; i < 8; i++) go();
