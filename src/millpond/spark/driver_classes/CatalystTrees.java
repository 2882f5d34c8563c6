package millpond;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Expand;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.util.Utils;
import py4j.Gateway;
import scala.collection.Iterator;
import scala.collection.Seq;

/** Reads trees of Catalyst in one call, in place of a call for each node and value. */
public class CatalystTrees {
    private static final String FIELD = "\u0001";
    private static final String NODE = "\u0002";
    private static final int MOST_NODES = 4096;

    /**
     * Registers the elements of a sequence with all nodes below them, and returns for each node, parents first: its id
     * in the gateway, class, number of children, expression id and SQL type; "" for an id or type that it lacks.
     *
     * @return null if an element is not a node of a tree, or if there are more than 4,096 nodes: a tree may contain a
     *     node many times, and so have more nodes than memory can hold
     * @param released ids of nodes that are not used any more, each followed by a space
     */
    public static String nodes(Gateway gateway, Seq elements, String released) {
        if (!released.isEmpty()) {
            String[] ids = released.split(" ");
            for (int i = 0; i < ids.length; i++) {
                gateway.deleteObject(ids[i]);
            }
        }
        if (count(elements, 0) > MOST_NODES) {
            return null;
        }
        StringBuilder found = new StringBuilder();
        add(gateway, elements, found);
        return found.toString();
    }

    /** The number of nodes, counted from `found` on; a number above the limit if there are more, or other elements. */
    private static int count(Seq elements, int found) {
        int nodes = found;
        for (Iterator each = elements.iterator(); each.hasNext() && nodes <= MOST_NODES;) {
            Object element = each.next();
            nodes = element instanceof TreeNode ? count(((TreeNode) element).children(), nodes + 1) : MOST_NODES + 1;
        }
        return nodes;
    }

    private static void add(Gateway gateway, Seq elements, StringBuilder found) {
        for (Iterator each = elements.iterator(); each.hasNext();) {
            TreeNode node = (TreeNode) each.next();
            Seq children = node.children();
            found.append(gateway.putNewObject(node)).append(FIELD);
            found.append(Utils.getFormattedClassName(node)).append(FIELD);
            found.append(children.size()).append(FIELD);
            found.append(identity(node)).append(FIELD).append(type(node)).append(NODE);
            add(gateway, children, found);
        }
    }

    private static String identity(Object node) {
        if (node instanceof AttributeReference) {
            return String.valueOf(((AttributeReference) node).exprId().id());
        }
        return node instanceof Alias ? String.valueOf(((Alias) node).exprId().id()) : "";
    }

    /** The type as text; "" for a type with names, which may hold any character, and for none. */
    private static String type(TreeNode node) {
        if (!(node instanceof Expression) || !((Expression) node).resolved()) {
            return "";
        }
        try {
            String text = ((Expression) node).dataType().catalogString();
            return text.contains("struct<") ? "" : text;
        } catch (Exception error) { // a part that has no type, such as the frame of a window
            return "";
        }
    }

    /**
     * The number of parts of a plan's largest node and of its largest column, and the name of that column, when each
     * column is replaced by its definition.
     */
    public static String inlined(QueryPlan plan) {
        List nodes = new ArrayList();
        list(plan, nodes);
        Map sizes = new HashMap();
        double total = 0;
        double largest = 0;
        String name = "an expression";
        for (int i = nodes.size() - 1; i >= 0; i--) { // children, which define columns, come after their parents
            QueryPlan node = (QueryPlan) nodes.get(i);
            Seq trees = node instanceof Expand ? node.output() : node.expressions();
            double own = 0;
            for (Iterator each = trees.iterator(); each.hasNext();) {
                Expression tree = (Expression) each.next();
                double parts = size(tree, sizes);
                own += parts;
                if (tree instanceof Alias && parts > largest) {
                    largest = parts;
                    name = ((Alias) tree).name();
                }
            }
            if (node instanceof Aggregate) { // its results are values, also for the nodes above it
                sizes.clear();
                for (Iterator each = trees.iterator(); each.hasNext();) {
                    size((Expression) each.next(), sizes);
                }
            }
            total = Math.max(total, own);
        }
        return total + FIELD + largest + FIELD + name;
    }

    private static void list(TreeNode node, List found) {
        found.add(node);
        for (Iterator each = node.children().iterator(); each.hasNext();) {
            list((TreeNode) each.next(), found);
        }
    }

    /** The parts of an expression; keeps them as the size of the column that it defines. */
    private static double size(Expression tree, Map sizes) {
        List nodes = new ArrayList();
        list(tree, nodes);
        double parts = 0;
        for (int i = 0; i < nodes.size(); i++) {
            Object node = nodes.get(i);
            Object known = node instanceof AttributeReference ? sizes.get(identity(node)) : null;
            parts += known == null ? 1 : ((Double) known).doubleValue();
        }
        parts = Math.min(parts, 1e300);
        if (tree instanceof Alias) {
            sizes.put(identity(tree), Double.valueOf(parts));
        }
        return parts;
    }
}
