import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsParameters;
import com.sun.net.httpserver.HttpsServer;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Arrays;
import java.util.Base64;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLSocket;

/**
 * Servers of the JDK. Each line of the input is "ADDRESS PORT CHAIN MODE..."; "ready" and the address are printed when that
 * server listens. It is compiled by "javac --release 11".
 */
public class Server extends HttpsConfigurator {
    static final ExecutorService pool = Executors.newCachedThreadPool();
    final String mode;

    Server(SSLContext context, String mode) {
        super(context);
        this.mode = mode;
    }

    @Override
    public void configure(HttpsParameters p) {
        p.setSSLParameters(limit(getSSLContext().getDefaultSSLParameters(), mode));
    }

    /** context returns an SSLContext with the certificates and the key of a PEM file. */
    static SSLContext context(String chain) throws Exception {
        String text = Files.readString(Paths.get(chain));
        int at = text.indexOf("-----BEGIN PRIVATE KEY-----");
        String key = text.substring(text.indexOf('\n', at), text.indexOf("-----END PRIVATE KEY-----"));
        PKCS8EncodedKeySpec spec = new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(key));
        InputStream certificates = new ByteArrayInputStream(text.substring(0, at).getBytes(StandardCharsets.US_ASCII));
        Certificate[] all = CertificateFactory.getInstance("X.509").generateCertificates(certificates).toArray(new Certificate[0]);
        PrivateKey made = KeyFactory.getInstance(all[0].getPublicKey().getAlgorithm()).generatePrivate(spec);
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        store.setKeyEntry("server", made, new char[0], all);
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store, new char[0]);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), null, null);
        return context;
    }

    /** limit sets the parameters of a mode that differ from the default. */
    static SSLParameters limit(SSLParameters p, String mode) {
        if (mode.contains("tls12")) {
            p.setProtocols(new String[] {"TLSv1.2"});
        } else if (mode.contains("tls13")) {
            p.setProtocols(new String[] {"TLSv1.3"});
        }
        if (mode.contains("certificate")) {
            p.setWantClientAuth(true);
        }
        return p;
    }

    static void answer(HttpExchange x, String mode) throws IOException {
        long length = 0;
        try (InputStream in = x.getRequestBody()) {
            byte[] piece = new byte[8192];
            for (int n; (n = in.read(piece)) > 0; length += n) {
            }
        }
        byte[] body = (length > 0 ? "" + length : "ok").getBytes(StandardCharsets.US_ASCII);
        if (mode.contains("error")) {
            x.sendResponseHeaders(404, -1);
        } else {
            x.sendResponseHeaders(200, mode.contains("chunks") ? 0 : body.length);
            try (OutputStream out = x.getResponseBody()) {
                out.write(body, 0, 1);
                out.flush();
                out.write(body, 1, body.length - 1);
            }
        }
        x.close();
    }

    static void https(InetSocketAddress at, SSLContext context, String mode) throws IOException {
        HttpsServer server = HttpsServer.create(at, 50);
        server.setHttpsConfigurator(new Server(context, mode));
        server.setExecutor(pool);
        server.createContext("/", x -> answer(x, mode));
        server.start();
    }

    /** socket answers one request on each connection, and reports whether the session was resumed if the mode tests that. */
    static void socket(InetSocketAddress at, SSLContext context, String mode) throws IOException {
        SSLServerSocket server = (SSLServerSocket) context.getServerSocketFactory().createServerSocket(at.getPort(), 50, at.getAddress());
        server.setSSLParameters(limit(server.getSSLParameters(), mode));
        pool.submit(() -> {
            while (true) {
                SSLSocket c = (SSLSocket) server.accept();
                long since = System.currentTimeMillis();
                pool.submit(() -> {
                    try (c) {
                        BufferedReader in = new BufferedReader(new InputStreamReader(c.getInputStream(), StandardCharsets.ISO_8859_1));
                        for (String line; (line = in.readLine()) != null && !line.isEmpty();) {
                        }
                        boolean again = c.getSession().getCreationTime() < since;
                        Thread.sleep(5); // the next session begins later than this one
                        String body = !mode.contains("resumption") ? "ok" : again ? "resumed" : "new";
                        c.getOutputStream().write(("HTTP/1.1 200 OK\r\n\r\n" + body).getBytes(StandardCharsets.US_ASCII));
                    } catch (IOException e) {
                        // clients may disconnect, or distrust the certificate
                    }
                    return null;
                });
            }
        });
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null;) {
            String[] words = line.split(" ");
            InetSocketAddress at = new InetSocketAddress(InetAddress.getByName(words[0]), Integer.parseInt(words[1]));
            String mode = String.join(" ", Arrays.asList(words).subList(3, words.length));
            if (mode.startsWith("socket")) {
                socket(at, context(words[2]), mode);
            } else {
                https(at, context(words[2]), mode);
            }
            System.out.println("ready " + words[0]);
        }
        System.exit(0);
    }
}
