import java.net.URI;
import java.net.URL;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import javax.net.ssl.HttpsURLConnection;

/** Fetches a URL with one of the two clients of Java and prints the answer. It is compiled by "javac --release 11". */
public class Fetch {
    public static void main(String[] args) throws Exception {
        if (args[0].equals("HttpClient")) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(args[1])).build();
            System.out.print(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
        } else {
            HttpsURLConnection connection = (HttpsURLConnection) new URL(args[1]).openConnection();
            System.out.print(new String(connection.getInputStream().readAllBytes()));
        }
    }
}
